// The versions of a shard together with the way new ones are loaded: what the control service and the admin API both
// do their work through. Slow calls (load, patch) run in the caller's thread and disturb no reader.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>

#include "versions.hpp"

namespace cloudedge::cube {

// Makes a version of the files under `path`. Throws when they cannot be used.
using Loader = std::function<VersionPtr(const std::string& path, const std::string& name)>;
// Makes a version of the files under `path` put on top of another version.
using PatchLoader =
    std::function<VersionPtr(const VersionPtr& base, const std::string& path, const std::string& name)>;

class NotLoaded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class NameTaken : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Catalog {
 public:
  Catalog(Loader loader, PatchLoader patch_loader)
      : loader_(std::move(loader)), patch_loader_(std::move(patch_loader)) {}

  const Versions& versions() const { return versions_; }

  // These throw NotLoaded, NameTaken (also for a version that may not go because it is active), and what the loader
  // throws.
  void add(VersionPtr version);
  void load(const std::string& path, const std::string& name);
  void patch(const std::string& base, const std::string& path, const std::string& name);
  void activate(const std::string& name);
  void deactivate() { versions_.deactivate(); }
  void unload(const std::string& name);

  // How to wait until every request that is being answered now has been answered. Set before anything is unloaded.
  void set_wait_for_readers(std::function<void()> wait) { wait_for_readers_ = std::move(wait); }

  std::int64_t last_load_ms() const { return last_load_ms_; }

 private:
  class Reservation;

  template <class Make>
  void make(const std::string& name, Make make);

  Versions versions_;
  Loader loader_;
  PatchLoader patch_loader_;
  std::function<void()> wait_for_readers_;
  std::mutex mutex_;
  std::set<std::string> loading_;  // names on their way in
  std::atomic<std::int64_t> last_load_ms_ = 0;
};

}  // namespace cloudedge::cube
