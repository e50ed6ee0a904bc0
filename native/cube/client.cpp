#include "client.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "stats.hpp"

namespace cloudedge::cube {
namespace {

// Keys per frame: far below the limit of servers, and even with the longest values the answer is, too.
constexpr std::size_t kKeysPerFrame = 32'768;
// Frames in flight per shard, each on a connection of its own.
constexpr std::size_t kFramesPerShard = 4;

// The place of a key's answer in the parts.
struct Place {
  std::uint32_t part;
  std::uint32_t index;
};

// Splits keys into one part per shard, several for a shard with very many keys, each key once.
class Split {
 public:
  Split(std::span<const std::uint64_t> keys, std::size_t shards) : places_(keys.size()) {
    // An open hash table over positions; at most half full, so that a search ends.
    const std::size_t mask = std::bit_ceil(keys.size() * 2 + 1) - 1;
    std::vector<std::uint32_t> slots(mask + 1, 0);  // position + 1 of the key's first appearance
    std::vector<std::int32_t> part_of(shards, -1);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::uint64_t key = keys[i];
      std::size_t slot = (key * 0x9e3779b97f4a7c15 >> 29) & mask;
      while (slots[slot] != 0 && keys[slots[slot] - 1] != key) slot = (slot + 1) & mask;
      if (slots[slot] != 0) {
        places_[i] = places_[slots[slot] - 1];
        continue;
      }
      slots[slot] = static_cast<std::uint32_t>(i + 1);
      const std::size_t shard = shards == 1 ? 0 : key % shards;
      if (part_of[shard] < 0 || parts_[static_cast<std::size_t>(part_of[shard])].keys.size() == kKeysPerFrame) {
        part_of[shard] = static_cast<std::int32_t>(parts_.size());
        parts_.emplace_back().number = static_cast<unsigned>(shard);
        parts_.back().keys.reserve(std::min(keys.size() / shards + 1, kKeysPerFrame));
      }
      Part& part = parts_[static_cast<std::size_t>(part_of[shard])];
      places_[i] = {static_cast<std::uint32_t>(part_of[shard]), static_cast<std::uint32_t>(part.keys.size())};
      part.keys.push_back(key);
    }
  }

  std::span<Part> parts() { return parts_; }
  std::span<const Place> places() const { return places_; }

 private:
  std::vector<Place> places_;
  std::vector<Part> parts_;
};

// Finds the width of all values; the first value of another width is reported.
void find_width(std::span<const Part> parts, std::optional<std::size_t> width, SeekOutcome& outcome) {
  for (const Part& part : parts) {
    if (!part.answered) continue;
    for (std::size_t i = 0; i < part.values.size(); ++i) {
      if (!part.values[i].found) continue;
      if (!width) width = part.values[i].size;
      if (part.values[i].size == *width) continue;
      outcome.odd_key = part.keys[i];
      outcome.odd_width = part.values[i].size;
      outcome.width = *width;
      return;
    }
  }
  outcome.width = width.value_or(0);
}

void merge(Split& split, SeekOutcome& outcome) {
  const std::size_t count = split.places().size();
  const std::size_t width = outcome.width;
  outcome.rows = std::make_unique_for_overwrite<std::uint8_t[]>(count * width);
  outcome.states = std::make_unique_for_overwrite<RowState[]>(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Place place = split.places()[i];
    const Part& part = split.parts()[place.part];
    std::uint8_t* const row = outcome.rows.get() + i * width;
    if (part.answered && part.values[place.index].found) {
      outcome.states[i] = RowState::found;
      if (width > 0) std::memcpy(row, part.values[place.index].data, width);
    } else {
      outcome.states[i] = part.answered ? RowState::missing : RowState::failed;
      if (width > 0) std::memset(row, 0, width);
    }
  }
}

}  // namespace

Client::Client(const ClientOptions& options) : options_(options.call) {
  for (const std::vector<Endpoint>& replicas : options.shards) {
    auto shard = std::make_unique<ReplicaSet>();
    for (const Endpoint& endpoint : replicas) {
      shard->replicas.push_back(std::make_unique<Replica>(endpoint, options.max_idle));
    }
    if (shard->replicas.empty()) throw std::invalid_argument("a shard without a server");
    shards_.push_back(std::move(shard));
  }
  if (shards_.empty()) throw std::invalid_argument("a client without shards");
}

SeekOutcome Client::seek(std::span<const std::uint64_t> keys, const std::optional<std::string_view>& pin,
                         std::optional<std::size_t> width, std::optional<std::int64_t> timeout_ms) {
  if (keys.size() >= 0xffffffff) throw std::invalid_argument("too many keys for one call");
  SeekOutcome outcome;
  Split split(keys, shards_.size());
  CallOptions options = options_;
  if (timeout_ms) options.timeout_ms = std::min(options.timeout_ms, *timeout_ms);
  const std::int64_t deadline_ns = now_ns() + options.timeout_ms * 1'000'000;
  const std::size_t at_once = kFramesPerShard * shards_.size();
  for (std::span<Part> left = split.parts(); !left.empty(); left = left.subspan(std::min(left.size(), at_once))) {
    if (left.data() != split.parts().data()) {
      options.timeout_ms = std::max<std::int64_t>(0, (deadline_ns - now_ns()) / 1'000'000);
    }
    call(shards_, left.first(std::min(left.size(), at_once)), pin, options);
  }
  find_width(split.parts(), width, outcome);
  if (!outcome.odd_key) merge(split, outcome);
  for (Part& part : split.parts()) {
    outcome.shards.push_back({.number = part.number,
                              .keys = part.keys.size(),
                              .answered = part.answered,
                              .version = std::move(part.version),
                              .failures = std::move(part.failures)});
  }
  return outcome;
}

}  // namespace cloudedge::cube
