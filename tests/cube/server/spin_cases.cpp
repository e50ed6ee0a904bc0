// What Spin decides, without a clock: waits of given lengths are told to it as a loop would, and what it cost is added up.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "../../../native/cube/spin.hpp"

using cloudedge::cube::Spin;

namespace {

constexpr std::int64_t kUs = 1000;

struct Cost {
  std::int64_t awake_ns = 0;  // looking for events
  int asleep = 0;             // waits that ended with being woken
};

Cost wait(Spin& spin, std::int64_t ns, int times) {
  Cost cost;
  for (int i = 0; i < times; ++i) {
    if (spin.pays() && ns < spin.limit_ns()) {
      cost.awake_ns += ns;
      spin.found();
      continue;
    }
    if (spin.pays()) {
      cost.awake_ns += spin.limit_ns();
      spin.missed();
    }
    ++cost.asleep;
    spin.slept(ns);
  }
  return cost;
}

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

}  // namespace

int main() {
  Spin busy(100);
  check(wait(busy, 20 * kUs, 1000).asleep < 10, "a busy thread stays awake");
  check(wait(busy, 5'000 * kUs, 1000).awake_ns <= 100 * kUs, "and sleeps again, after one look, when it is quiet");
  check(wait(busy, 20 * kUs, 1000).asleep < 20, "and is awake again soon");

  Spin rare(100);
  check(wait(rare, 300 * kUs, 1000).awake_ns == 0, "rare requests are not waited for");

  Spin between(100);
  const int times = 100'000;
  const std::int64_t awake = wait(between, 150 * kUs, times).awake_ns;
  check(awake < times * 150 * kUs / 1000, "traffic just slower than the limit costs less than a thousandth");

  Spin off(0);
  check(wait(off, 0, 1000).awake_ns == 0 && !off.pays(), "never, when so told");
}
