// Load through the client: callers that seek one batch after another from all shards of a table, like a program that
// embeds the client, and the time of every call. loadgen.hpp measures a server alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client.hpp"

namespace cloudedge::cube {

struct Calls {
  unsigned callers = 1;         // threads, each with one call in flight
  unsigned batch = 26;          // keys per call
  std::uint64_t key_space = 1;  // keys are drawn from 0 .. key_space - 1
  double seconds = 1;
  double warmup_seconds = 0.2;
  std::uint64_t seed = 1;
  std::optional<std::string> pin;
};

struct CallsResult {
  std::uint64_t calls = 0;
  std::uint64_t keys = 0;
  std::uint64_t missing = 0;
  std::uint64_t failed = 0;  // calls in which a shard did not answer; `keys` includes its keys
  std::uint64_t mixed = 0;   // calls that were answered from more than one version
  std::string failure;       // the error of the first failed call
  double seconds = 0;
  double p50_us = 0;
  double p99_us = 0;
  double max_us = 0;
};

CallsResult generate_calls(Client& client, const Calls& options);

}  // namespace cloudedge::cube
