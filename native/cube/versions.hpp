// The versions of one shard that are loaded side by side, and the pointer that says which one answers.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "version.hpp"

namespace cloudedge::cube {

// Readers and writers share one immutable list. A writer makes a new list, swaps the pointer to it, and frees the old
// list once every reader that may still look at it is done; looking takes nanoseconds, so that wait is short.
// Readers announce themselves in one of a few lanes, each on a cache line of its own, and get a pointer whose count
// also lives in that lane: threads in different lanes never write to the same line.
class Versions {
 public:
  Versions();
  ~Versions();
  Versions(const Versions&) = delete;
  Versions& operator=(const Versions&) = delete;

  // The version that answers requests that ask for none; null when nothing is active. Lock-free for readers.
  VersionPtr active() const;
  // A loaded version by name; null when it is not loaded. Lock-free for readers.
  VersionPtr find(const std::string& name) const;
  std::vector<VersionPtr> all() const;
  // Adds a loaded version; returns false (and changes nothing) when that name is there already.
  bool add(VersionPtr version);
  // Makes a loaded version the active one; returns false when it is not loaded.
  bool activate(const std::string& name);
  // Makes no version the active one, as before the first was.
  void deactivate();
  // Forgets a version that is not active; its memory goes when its last reader is done. False: unknown or active.
  bool remove(const std::string& name);

 private:
  static constexpr std::size_t kLanes = 32;  // more threads than that share lanes, which is slower but correct

  struct alignas(64) Lane {
    std::atomic<std::uint32_t> readers{0};
  };
  struct Member;
  struct List;

  template <class Pick>
  VersionPtr read(Pick pick) const;
  void publish(std::unique_ptr<const List> next);

  mutable std::array<Lane, kLanes> lanes_;
  std::atomic<const List*> list_;
  std::mutex writing_;
};

}  // namespace cloudedge::cube
