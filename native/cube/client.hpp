// Reads rows by key from all shards of a table: keys are deduplicated, split by `key mod shards`, asked for in parallel
// and put back in the caller's order. What to do about a failed shard or about shards that answer from different
// versions is the caller's decision; everything needed for it is in the outcome.
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
  std::size_t max_idle = 32;                  // connections kept per replica
  CallOptions call;
};

enum class RowState : std::uint8_t { missing = 0, found = 1, failed = 2 };  // failed: its shard did not answer

struct ShardOutcome {
  unsigned number = 0;
  std::uint64_t keys = 0;  // different ones
  bool answered = false;
  std::string version;
  std::vector<Attempt> failures;
};

struct SeekOutcome {
  std::size_t width = 0;                 // bytes of every value
  std::unique_ptr<std::uint8_t[]> rows;  // keys.size() rows of `width` bytes; zero where the state is not found
  std::unique_ptr<RowState[]> states;    // one per key
  std::vector<ShardOutcome> shards;      // those that were asked
  std::optional<std::uint64_t> odd_key;  // a key whose value has another width, which makes `rows` meaningless
  std::size_t odd_width = 0;
};

class Client {
 public:
  explicit Client(const ClientOptions& options);
  Client(const Client&) = delete;

  // `width`: what values must have; taken from the first one found when not given. `timeout_ms`: less time than usual.
  // Safe to call from many threads.
  SeekOutcome seek(std::span<const std::uint64_t> keys, const std::optional<std::string_view>& pin,
                   std::optional<std::size_t> width, std::optional<std::int64_t> timeout_ms = std::nullopt);

 private:
  CallOptions options_;
  std::vector<std::unique_ptr<ReplicaSet>> shards_;
};

}  // namespace cloudedge::cube
