// Nanoseconds per key of Version::lookup, one thread, no Python: cube_lookup DIRECTORY [KEYS_ARE_BELOW]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "../native/cube/overlay.hpp"
#include "../native/cube/stored.hpp"

using namespace cloudedge::cube;
using Clock = std::chrono::steady_clock;

namespace {

double nanoseconds_per_key(const Version& version, const std::vector<std::uint64_t>& keys, std::size_t batch) {
  std::vector<Value> out(batch);
  double best = 1e9;
  std::uint64_t sum = 0;
  for (int round = 0; round < 5; ++round) {
    const auto start = Clock::now();
    for (std::size_t at = 0; at + batch <= keys.size(); at += batch) {
      version.lookup({keys.data() + at, batch}, out);
      // A server copies every value; touching its last byte is what that costs in waiting.
      for (const Value& value : out) sum += value.found && value.size > 0 ? value.data[value.size - 1] : 1;
    }
    const std::chrono::duration<double, std::nano> took = Clock::now() - start;
    best = std::min(best, took.count() / static_cast<double>(keys.size() / batch * batch));
  }
  return sum != 0 ? best : -1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::uint64_t below = std::strtoull(argv[2], nullptr, 10);
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> keys(1 << 20);
  for (auto& key : keys) key = random() % below;
  std::vector<std::uint64_t> changed(below / 100);
  for (std::size_t i = 0; i < changed.size(); ++i) changed[i] = i * 100;
  std::printf("{");
  for (const bool map : {false, true}) {
    LoadOptions options;
    options.map = map;
    const auto version = load(argv[1], "bench", options);
    for (const std::size_t batch : {26, 260, 2600}) {
      std::printf("\"%s_%zu\": %.1f, ", map ? "mapped" : "memory", batch, nanoseconds_per_key(*version, keys, batch));
    }
    if (map) continue;
    const std::uint32_t width = version->tally().lengths.longest;
    const std::vector<std::uint8_t> values(changed.size() * width);
    const auto overlay = apply_delta(version, {changed, values.data(), width}, {}, "delta", std::nullopt);
    for (const std::size_t batch : {26, 260, 2600}) {
      std::printf("\"overlay_%zu\": %.1f, ", batch, nanoseconds_per_key(*overlay, keys, batch));
    }
  }
  std::printf("\"keys\": %zu}\n", keys.size());
  return 0;
}
