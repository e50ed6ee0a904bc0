#include "client_load.hpp"

#include <algorithm>
#include <thread>
#include <vector>

#include "histogram.hpp"
#include "random.hpp"
#include "stats.hpp"
#include "threads.hpp"

namespace cloudedge::cube {
namespace {

struct Caller {
  CallsResult result;
  Histogram times;

  void count(const SeekOutcome& outcome, std::size_t keys) {
    ++result.calls;
    result.keys += keys;
    const ShardOutcome* first = nullptr;
    bool failed = outcome.odd_key.has_value();
    bool mixed = false;
    for (const ShardOutcome& shard : outcome.shards) {
      if (!shard.answered) {
        failed = true;
        if (result.failure.empty() && !shard.failures.empty()) {
          const Attempt& last = shard.failures.back();
          result.failure = "shard " + std::to_string(shard.number) + ", " + last.replica + ": " + last.outcome;
        }
      } else if (first == nullptr) {
        first = &shard;
      } else {
        mixed = mixed || shard.version != first->version;
      }
    }
    result.failed += failed ? 1 : 0;
    result.mixed += mixed ? 1 : 0;
    for (std::size_t i = 0; !outcome.odd_key && i < keys; ++i) {
      result.missing += outcome.states[i] == RowState::missing ? 1 : 0;
    }
  }
};

void run(Client& client, const Calls& options, std::uint64_t random, std::int64_t from_ns, std::int64_t until_ns,
         Caller& caller) {
  std::vector<std::uint64_t> keys(options.batch);
  while (true) {
    for (std::uint64_t& key : keys) key = next_random(random) % std::max<std::uint64_t>(1, options.key_space);
    const std::int64_t start = now_ns();
    if (start >= until_ns) return;
    const SeekOutcome outcome = client.seek(keys, options.pin, std::nullopt);
    if (start < from_ns) continue;
    caller.times.add(now_ns() - start);
    caller.count(outcome, keys.size());
  }
}

}  // namespace

CallsResult generate_calls(Client& client, const Calls& options) {
  const std::int64_t from_ns = now_ns() + static_cast<std::int64_t>(options.warmup_seconds * 1e9);
  const std::int64_t until_ns = from_ns + static_cast<std::int64_t>(options.seconds * 1e9);
  std::vector<Caller> callers(std::max(1u, options.callers));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < callers.size(); ++i) {
    // Seeds far apart: callers that draw the same keys would warm each other's caches.
    const std::uint64_t seed = options.seed + i * 0x632be59bd9b4e019;
    threads.push_back(start_thread(
        "cube-caller", [&, i, seed] { run(client, options, seed, from_ns, until_ns, callers[i]); }));
  }
  for (std::thread& thread : threads) thread.join();
  CallsResult all;
  Histogram times;
  for (const Caller& caller : callers) {
    all.calls += caller.result.calls;
    all.keys += caller.result.keys;
    all.missing += caller.result.missing;
    all.failed += caller.result.failed;
    all.mixed += caller.result.mixed;
    if (all.failure.empty()) all.failure = caller.result.failure;
    times.add(caller.times);
  }
  all.seconds = static_cast<double>(now_ns() - from_ns) / 1e9;
  all.p50_us = times.percentile_us(0.50);
  all.p99_us = times.percentile_us(0.99);
  all.max_us = times.max_us();
  return all;
}

}  // namespace cloudedge::cube
