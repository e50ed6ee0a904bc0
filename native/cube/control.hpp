// Upstream's control service: commands that load a version in the background and switch to it. They map to named
// versions: the current one is the active one, the background one is the one that was loaded or switched away from
// last. One command runs at a time; a second one is refused at once, as in upstream.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "catalog.hpp"

namespace cloudedge::cube {

struct ControlAnswer {
  int status = 200;
  std::string body;
  std::string reason = {};  // the reason why a command was not tried
};

class Control {
 public:
  using Done = std::function<void(ControlAnswer)>;

  // Paths in commands are below `data_dir` and cannot leave it.
  Control(Catalog& catalog, std::string data_dir);
  ~Control();

  // From now on refuses every command but "status", with this reason: another component manages the versions.
  void refuse(std::string reason);

  // Returns the answer if it is known at once; otherwise calls `done` with it, from another thread.
  std::optional<ControlAnswer> run(std::string_view body, Done done);

 private:
  using Command = std::map<std::string, std::string>;

  void work();
  ControlAnswer execute(const Command& command);
  ControlAnswer status();
  void load(const Command& command, bool patch);
  void enable(const std::string& version);
  void switch_to_background();
  void unload_background();
  void set_background(std::optional<std::string> version);
  std::optional<std::string> background() const;

  Catalog& catalog_;
  std::string data_dir_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::string> background_;
  std::string refusal_;
  bool busy_ = false;
  bool loading_ = false;
  bool stopped_ = false;
  Command command_;
  Done done_;
  std::thread worker_;
};

}  // namespace cloudedge::cube
