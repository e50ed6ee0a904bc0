// The loaded versions of one shard, and the pointer to the active one.
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
// list once every reader that may still use it is done; a read takes nanoseconds, so that wait is short. Readers
// announce themselves in one of a few lanes, each on a cache line of its own, and get a pointer whose count also lives
// in that lane: threads in different lanes never write to the same line.
class Versions {
 public:
  Versions();
  ~Versions();
  Versions(const Versions&) = delete;
  Versions& operator=(const Versions&) = delete;

  // The active version, which answers requests without a pin; null when there is none. Lock-free for readers.
  VersionPtr active() const;
  // A loaded version by name, or null. Lock-free for readers.
  VersionPtr find(const std::string& name) const;
  std::vector<VersionPtr> all() const;
  // Adds a loaded version; false, without a change, if the name is taken.
  bool add(VersionPtr version);
  // Makes a loaded version the active one; false if it is not loaded.
  bool activate(const std::string& name);
  // Leaves no version active, as before the first activation.
  void deactivate();
  // Removes an inactive version; its memory is freed when its last reader is done. False: unknown or active.
  bool remove(const std::string& name);

 private:
  static constexpr std::size_t kLanes = 32;  // further threads share lanes, which is slower but correct

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
