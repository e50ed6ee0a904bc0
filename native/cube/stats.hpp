// A server's counters. Each loop thread writes its own counters with plain stores; a reader sums them up at any time
// without stopping a thread.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace cloudedge::cube {

inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

enum Counter : std::size_t {
  kRequests,        // seeks answered, errors included
  kErrors,          // seeks answered with an error
  kKeys,            // keys looked up
  kMissing,         // of these, missing
  kTooLong,         // of these, found but longer than a deliverable value
  kBytesIn,
  kBytesOut,
  kOpened,          // connections
  kClosed,
  kTimedOut,        // of these, closed at a deadline: idle, half a message, not reading
  kBroken,          // of these, closed for a protocol violation
  kLatencyNs,       // sum over the histogram
  kCounters,
};

constexpr std::size_t kBuckets = 22;  // 1 µs, 2 µs, ... 1.05 s, and above

struct Snapshot {
  std::array<std::uint64_t, kCounters> counters{};
  std::array<std::uint64_t, kBuckets> latency{};

  std::uint64_t operator[](Counter counter) const { return counters[counter]; }
  Snapshot& operator+=(const Snapshot& other) {
    for (std::size_t i = 0; i < counters.size(); ++i) counters[i] += other.counters[i];
    for (std::size_t i = 0; i < latency.size(); ++i) latency[i] += other.latency[i];
    return *this;
  }
};

class alignas(64) Counters {
 public:
  void add(Counter counter, std::uint64_t count) { bump(counters_[counter], count); }

  // Counts `count` messages that took `ns` each, from being readable to being passed to the kernel.
  void latency(std::int64_t ns, std::uint64_t count) {
    const auto us = static_cast<std::uint64_t>(ns > 0 ? ns : 0) / 1000;
    bump(latency_[std::min<std::size_t>(std::bit_width(us), kBuckets - 1)], count);
    bump(counters_[kLatencyNs], static_cast<std::uint64_t>(ns > 0 ? ns : 0) * count);
  }

  Snapshot read() const {
    Snapshot out;
    for (std::size_t i = 0; i < counters_.size(); ++i) out.counters[i] = counters_[i].load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < latency_.size(); ++i) out.latency[i] = latency_[i].load(std::memory_order_relaxed);
    return out;
  }

 private:
  static void bump(std::atomic<std::uint64_t>& value, std::uint64_t count) {  // one writer: no locked instruction
    value.store(value.load(std::memory_order_relaxed) + count, std::memory_order_relaxed);
  }

  std::array<std::atomic<std::uint64_t>, kCounters> counters_{};
  std::array<std::atomic<std::uint64_t>, kBuckets> latency_{};
};

}  // namespace cloudedge::cube
