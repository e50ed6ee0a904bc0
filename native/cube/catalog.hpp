// The versions of a shard and the loaders for new ones; the control service and the admin API both work through it.
// Slow calls (load, patch) run in the caller's thread and disturb no reader.
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

// Loads a version from the files under `path`. Throws when they cannot be used.
using Loader = std::function<VersionPtr(const std::string& path, const std::string& name)>;
// Loads a version from the files under `path` on top of another version.
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

  // These throw NotLoaded, NameTaken (also for a version that cannot be unloaded because it is active), and the
  // loader's own errors.
  void add(VersionPtr version);
  void load(const std::string& path, const std::string& name);
  void patch(const std::string& base, const std::string& path, const std::string& name);
  void activate(const std::string& name);
  void deactivate() { versions_.deactivate(); }
  void unload(const std::string& name);

  // Sets the function that waits until all current requests have been answered. Call before anything is unloaded.
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
  std::set<std::string> loading_;  // names being loaded
  std::atomic<std::int64_t> last_load_ms_ = 0;
};

}  // namespace cloudedge::cube
