#include "catalog.hpp"

#include <utility>

#include "stats.hpp"

namespace cloudedge::cube {
namespace {

NotLoaded not_loaded(const std::string& name) { return NotLoaded("version '" + name + "' is not loaded"); }

NameTaken already_there(const std::string& name) {
  return NameTaken("version '" + name + "' is loaded already, and a version does not change under its name");
}

}  // namespace

// Reserves a name for one load, so that a second load of the same name is refused before it does the work.
class Catalog::Reservation {
 public:
  Reservation(Catalog& catalog, std::string name) : catalog_(catalog), name_(std::move(name)) {
    const std::lock_guard lock(catalog_.mutex_);
    if (catalog_.versions_.find(name_) != nullptr) throw already_there(name_);
    if (!catalog_.loading_.insert(name_).second) {
      throw NameTaken("version '" + name_ + "' is being loaded already");
    }
  }
  Reservation(const Reservation&) = delete;
  ~Reservation() {
    const std::lock_guard lock(catalog_.mutex_);
    catalog_.loading_.erase(name_);
  }

 private:
  Catalog& catalog_;
  std::string name_;
};

template <class Make>
void Catalog::make(const std::string& name, Make make) {
  const Reservation reservation(*this, name);
  const std::int64_t start_ns = now_ns();
  add(make());
  last_load_ms_ = (now_ns() - start_ns) / 1'000'000;
}

void Catalog::add(VersionPtr version) {
  const std::string name = version->name();
  if (!versions_.add(std::move(version))) throw already_there(name);
}

void Catalog::load(const std::string& path, const std::string& name) {
  make(name, [&] { return loader_(path, name); });
}

void Catalog::patch(const std::string& base, const std::string& path, const std::string& name) {
  const VersionPtr below = versions_.find(base);
  if (below == nullptr) throw not_loaded(base);
  make(name, [&] { return patch_loader_(below, path, name); });
}

void Catalog::activate(const std::string& name) {
  if (!versions_.activate(name)) throw not_loaded(name);
}

void Catalog::unload(const std::string& name) {
  VersionPtr last = versions_.find(name);
  if (last == nullptr) throw not_loaded(name);
  if (!versions_.remove(name)) throw NameTaken("version '" + name + "' is active: activate another one first");
  // Freeing a large version takes long. Once every request that may use it is done, `last` is the only reference
  // left, so the version is freed here and not in a thread that answers requests.
  if (wait_for_readers_) wait_for_readers_();
}

}  // namespace cloudedge::cube
