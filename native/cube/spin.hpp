// Decides whether a thread polls for events for a moment before it sleeps.
//
// Sleeping is cheap and waking up is not: on a virtual machine whose core has halted it takes tens of microseconds, of
// which the client pays a part with every request and the server another with every answer. So when recent waits were
// short, the thread polls during the next one, up to a limit. After polling in vain, more short waits than the last
// time must pass before it polls again, so that traffic just slower than the limit costs nothing in the long run, and
// rare requests never cost anything.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cloudedge::cube {

class Spin {
 public:
  explicit Spin(std::int64_t limit_us) : limit_ns_(limit_us * 1000) {}

  bool pays() const { return short_waits_ >= needed_ && limit_ns_ > 0; }
  // The longest time to poll before sleeping.
  std::int64_t limit_ns() const { return limit_ns_; }

  void found() { needed_ = std::max(needed_ / 2, kLeast); }
  void missed() {
    needed_ = std::min(needed_ * 2, kMost);
    short_waits_ = 0;
  }
  // A sleep ended after `ns`, which includes waking up: polling would have taken about half of it.
  void slept(std::int64_t ns) { short_waits_ = ns < 2 * limit_ns_ ? short_waits_ + 1 : 0; }

 private:
  static constexpr std::uint32_t kLeast = 4;
  static constexpr std::uint32_t kMost = 4096;

  std::int64_t limit_ns_;
  std::uint32_t needed_ = kLeast;
  std::uint32_t short_waits_ = 0;
};

}  // namespace cloudedge::cube
