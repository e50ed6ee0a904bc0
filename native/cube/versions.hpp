// The versions of one shard that are loaded side by side, and the pointer that says which one answers.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "version.hpp"

namespace cloudedge::cube {

class Versions {
 public:
  // The version that answers requests that ask for none; null when nothing is active. Lock-free for readers.
  VersionPtr active() const;
  // A loaded version by name; null when it is not loaded.
  VersionPtr find(const std::string& name) const;
  std::vector<VersionPtr> all() const;
  // Adds a loaded version; returns false (and changes nothing) when that name is there already.
  bool add(VersionPtr version);
  // Makes a loaded version the active one; returns false when it is not loaded.
  bool activate(const std::string& name);
  // Forgets a version that is not active; its memory goes when its last reader is done. False: unknown or active.
  bool remove(const std::string& name);

 private:
  mutable std::mutex mutex_;
  VersionPtr active_;
  std::map<std::string, VersionPtr> loaded_;
};

}  // namespace cloudedge::cube
