// Asks several shards at once and waits for all of them, in the calling thread. Asks another replica at once when one
// fails, and after a while when one is slow. Does not know the meaning of the keys; see client.hpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "replica.hpp"
#include "version.hpp"
#include "wire.hpp"

namespace cloudedge::cube {

enum class Balance { round_robin, least_loaded };

struct CallOptions {
  std::int64_t timeout_ms = 500;          // for the whole call, retries included
  std::int64_t connect_timeout_ms = 200;  // for each connection, as in brpc
  unsigned retry = 1;  // further attempts after the first; more if replicas are down and others are left
  std::int64_t backup_ms = 0;             // ask a second replica after this time; 0: never, negative: after its share
  Balance balance = Balance::round_robin;
  std::size_t max_body = 64 * 1024 * 1024;
};

struct ReplicaSet {
  std::vector<std::unique_ptr<Replica>> replicas;
  std::atomic<std::uint32_t> turn = 0;
};

struct Attempt {
  std::string replica;
  std::string outcome;
  std::int32_t code = 0;  // the RPC error it answered with
};

// The request to one shard, and its outcome.
struct Part {
  unsigned number = 0;  // of the shard
  std::vector<std::uint64_t> keys;
  std::vector<Value> values;  // one per key, pointing into `answer`; only when `answered`
  std::string version;
  bool answered = false;
  std::vector<Attempt> failures;
  Buffer answer;
};

void call(std::span<const std::unique_ptr<ReplicaSet>> shards, std::span<Part> parts,
          const std::optional<std::string_view>& pin, const CallOptions& options);

}  // namespace cloudedge::cube
