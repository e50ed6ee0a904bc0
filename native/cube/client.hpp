// Reads rows by key from all shards of a table: deduplicates keys, splits them by `key mod shards`, asks in parallel
// and restores the caller's order. The outcome has everything the caller needs to decide about a failed shard, or about
// shards that answer from different versions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "call.hpp"

namespace cloudedge::cube {

struct ClientOptions {
  std::vector<std::vector<Endpoint>> shards;  // the replicas of each
  std::size_t max_idle = 32;                  // idle connections kept per replica
  CallOptions call;
};

enum class RowState : std::uint8_t { missing = 0, found = 1, failed = 2 };  // failed: its shard did not answer

struct ShardOutcome {
  unsigned number = 0;
  std::uint64_t keys = 0;  // distinct keys
  bool answered = false;
  std::string version;
  std::vector<Attempt> failures;
};

struct SeekOutcome {
  std::size_t width = 0;                 // bytes of every value
  std::unique_ptr<std::uint8_t[]> rows;  // keys.size() rows of `width` bytes; zero where the state is not found
  std::unique_ptr<RowState[]> states;    // one per key
  std::vector<ShardOutcome> shards;      // the shards that were asked
  std::optional<std::uint64_t> odd_key;  // a key whose value has another width, which makes `rows` meaningless
  std::size_t odd_width = 0;
};

class Client {
 public:
  explicit Client(const ClientOptions& options);
  Client(const Client&) = delete;

  // `width`: the required width of values; by default that of the first one found. `timeout_ms`: a shorter time limit.
  // Safe to call from many threads.
  SeekOutcome seek(std::span<const std::uint64_t> keys, const std::optional<std::string_view>& pin,
                   std::optional<std::size_t> width, std::optional<std::int64_t> timeout_ms = std::nullopt);

 private:
  CallOptions options_;
  std::vector<std::unique_ptr<ReplicaSet>> shards_;
};

}  // namespace cloudedge::cube
