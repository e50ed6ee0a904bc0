#include "control.hpp"

#include <cstdio>
#include <exception>
#include <utility>

#include "json.hpp"
#include "threads.hpp"

namespace cloudedge::cube {
namespace {

class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

std::string member(const std::map<std::string, std::string>& command, const char* name) {
  const auto found = command.find(name);
  if (found == command.end()) throw Refused(std::string("the command needs a \"") + name + "\"");
  return found->second;
}

// The version that a path such as "/100" names: the path without its slash. It cannot leave the data directory.
std::string version_of(const std::string& path) {
  if (path.size() < 2 || path[0] != '/') throw Refused("version_path is not /VERSION: " + path);
  const std::string version = path.substr(1);
  for (std::size_t start = 0; start <= version.size();) {
    const std::size_t end = std::min(version.find('/', start), version.size());
    const std::string part = version.substr(start, end - start);
    if (part.empty() || part == "." || part == ".." || part.find('\0') != part.npos) {
      throw Refused("version_path is not /VERSION: " + path);
    }
    start = end + 1;
  }
  return version;
}

}  // namespace

Control::Control(Catalog& catalog, std::string data_dir)
    : catalog_(catalog), data_dir_(std::move(data_dir)), worker_(start_thread("cube-control", [this] { work(); })) {}

Control::~Control() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

void Control::refuse(std::string reason) {
  const std::lock_guard lock(mutex_);
  refusal_ = std::move(reason);
}

std::optional<ControlAnswer> Control::run(std::string_view body, Done done) {
  Command command;
  if (!json::parse_strings(body, command) || !command.contains("cmd")) return ControlAnswer{400, ""};
  if (command["cmd"] == "status") return status();
  {
    const std::lock_guard lock(mutex_);
    if (!refusal_.empty()) return ControlAnswer{403, "{\"error\":" + json::quoted(refusal_) + "}", refusal_};
    if (busy_ || stopped_) return ControlAnswer{500, "null"};
    busy_ = true;
    command_ = std::move(command);
    done_ = std::move(done);
  }
  changed_.notify_all();
  return std::nullopt;
}

void Control::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopped_ || busy_; });
    if (stopped_) return;
    const Command command = std::move(command_);
    const Done done = std::move(done_);
    lock.unlock();
    ControlAnswer answer = execute(command);
    lock.lock();
    busy_ = false;  // before the answer: its reader may send the next command
    lock.unlock();
    done(std::move(answer));
    lock.lock();
  }
}

ControlAnswer Control::execute(const Command& command) {
  const std::string& name = command.at("cmd");
  try {
    if (name == "bg_load_base" || name == "bg_load_patch") {
      load(command, name == "bg_load_patch");
    } else if (name == "reload_base" || name == "reload_patch") {
      load(command, name == "reload_patch");
      switch_to_background();
      unload_background();
    } else if (name == "enable") {
      enable(member(command, "version"));
    } else if (name == "bg_switch") {
      switch_to_background();
    } else if (name == "bg_unload") {
      unload_background();
    } else {
      throw Refused("no such command");
    }
    return {200, "null"};
  } catch (const std::exception& error) {
    // The answer has no field for a reason, so it goes to the log.
    std::fprintf(stderr, "cube: control command %s refused: %s\n", json::quoted(name).c_str(), error.what());
    return {500, "null"};
  }
}

ControlAnswer Control::status() {
  const VersionPtr active = catalog_.versions().active();
  const std::lock_guard lock(mutex_);
  return {200, "{\n   \"bg_version\" : " + json::quoted(background_.value_or("")) + ",\n   \"cur_version\" : " +
                   json::quoted(active ? active->name() : "") + ",\n   \"status\" : " + (loading_ ? "1" : "0") +
                   "\n}\n"};
}

void Control::load(const Command& command, bool patch) {
  const std::string version = version_of(member(command, "version_path"));
  const VersionPtr active = catalog_.versions().active();
  if (patch && active == nullptr) throw Refused("a patch needs a version to go on top of, and none is active");
  unload_background();
  if (catalog_.versions().find(version) == nullptr) {
    const auto set_loading = [this](bool on) {
      const std::lock_guard lock(mutex_);
      loading_ = on;
    };
    const std::string path = data_dir_ + "/" + version;
    set_loading(true);
    try {
      patch ? catalog_.patch(active->name(), path, version) : catalog_.load(path, version);
    } catch (...) {
      set_loading(false);
      throw;
    }
    set_loading(false);
  }
  set_background(version);
}

void Control::enable(const std::string& version) {
  const VersionPtr active = catalog_.versions().active();
  if (active != nullptr && active->name() == version) return;
  if (background() != version) throw Refused("version " + version + " is neither current nor in the background");
  switch_to_background();
}

void Control::switch_to_background() {
  const std::optional<std::string> next = background();
  if (!next) throw Refused("there is no background version");
  const VersionPtr before = catalog_.versions().active();
  catalog_.activate(*next);
  set_background(before ? std::optional(before->name()) : std::nullopt);
}

void Control::unload_background() {
  const std::optional<std::string> version = background();
  set_background(std::nullopt);
  const VersionPtr active = catalog_.versions().active();
  if (!version || (active != nullptr && active->name() == *version)) return;
  try {
    catalog_.unload(*version);
  } catch (const NotLoaded&) {  // the admin API has unloaded it meanwhile
  } catch (const NameTaken&) {  // or activated it
  }
}

void Control::set_background(std::optional<std::string> version) {
  const std::lock_guard lock(mutex_);
  background_ = std::move(version);
}

std::optional<std::string> Control::background() const {
  const std::lock_guard lock(mutex_);
  return background_;
}

}  // namespace cloudedge::cube
