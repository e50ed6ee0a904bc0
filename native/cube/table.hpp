// Rows in memory, found by key. Rows of one length lie densely (key, value); rows of several lengths carry theirs (key,
// u32 length, value, padding). Filled by one thread, the last row of a key wins; then only read.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <span>
#include <thread>
#include <utility>

#include "../rows.hpp"
#include "buckets.hpp"
#include "layout.hpp"

namespace cloudedge::cube {

inline std::uint64_t load_key(const std::uint8_t* at) {
  std::uint64_t key;
  std::memcpy(&key, at, sizeof key);
  return key;
}

inline Checksum row_checksum(std::uint64_t key, const Value& value) {
  RowHash hash(key);
  hash.add(value.data, value.size);
  return hash.finish();
}

// The range of value lengths; empty while shortest > longest.
struct Lengths {
  std::uint32_t shortest = 0xffffffff;
  std::uint32_t longest = 0;
  void add(std::uint32_t size) {
    shortest = std::min(shortest, size);
    longest = std::max(longest, size);
  }
  void add(const Lengths& other) {
    shortest = std::min(shortest, other.shortest);
    longest = std::max(longest, other.longest);
  }
  bool fixed() const { return shortest == longest; }
};

// Totals over rows, of which the last one of a key counts.
struct Tally {
  std::uint64_t rows = 0;
  std::uint64_t duplicates = 0;   // rows replaced by a later one of the same key
  std::uint64_t long_values = 0;  // keys whose value is too long to deliver
  Checksum checksum;
  Lengths lengths;

  void add(std::uint64_t key, const Value& value) {
    ++(value.found ? rows : long_values);
    if (!value.found) return;
    checksum += row_checksum(key, value);
    lengths.add(value.size);
  }
  void replace(std::uint64_t key, const Value& older) {
    ++duplicates;
    --(older.found ? rows : long_values);
    if (older.found) checksum -= row_checksum(key, older);
  }
};

// Indexes rows by key, a later row of the same key replacing the earlier one. Each bucket is prefetched before it is
// needed, so that the waits for memory overlap; finish() catches up.
template <class Rows>
class RowIndexer {
 public:
  // Adds every replaced row to `replaced`.
  RowIndexer(Buckets& buckets, const Rows& rows, Tally& replaced)
      : buckets_(buckets), rows_(rows), replaced_(replaced) {}

  void add(std::uint32_t row) {
    const std::uint64_t hash = Buckets::hash(rows_.key(row));
    buckets_.prefetch_home(hash);
    waiting_[added_++ % kWaiting] = {hash, row};
    if (added_ - settled_ < kWaiting) return;
    for (std::size_t i = 0; i < kWaiting / 2; ++i) settle();
  }
  void finish() {
    while (settled_ < added_) settle();
  }

 private:
  struct Waiting {
    std::uint64_t hash;
    std::uint32_t row;
  };

  void settle() {
    const auto [hash, row] = waiting_[settled_++ % kWaiting];
    const std::uint64_t key = rows_.key(row);
    if (std::uint32_t* older = buckets_.find(hash, key, rows_)) {
      replaced_.replace(key, rows_.value(*older));
      *older = row;
    } else {
      buckets_.insert(hash, row);
    }
  }

  static constexpr std::size_t kWaiting = 32;

  Buckets& buckets_;
  const Rows& rows_;
  Tally& replaced_;
  std::array<Waiting, kWaiting> waiting_;
  std::size_t added_ = 0;
  std::size_t settled_ = 0;
};

struct FixedRows {
  const std::uint8_t* base;
  std::size_t stride;

  const std::uint8_t* at(std::uint32_t row) const { return base + row * stride; }
  std::uint64_t key(std::uint32_t row) const { return load_key(at(row)); }
  Value value(std::uint32_t row) const {
    return {at(row) + sizeof(std::uint64_t), static_cast<std::uint32_t>(stride - sizeof(std::uint64_t)), true};
  }
  void prefetch(std::uint32_t row) const {
    const std::uint8_t* first = at(row);
    for (std::size_t line = 0; line < stride; line += 64) cube::prefetch(first + line);
    cube::prefetch(first + stride - 1);
  }
};

struct VariableRows {
  static constexpr std::size_t kHead = sizeof(std::uint64_t) + sizeof(std::uint32_t);
  static constexpr std::uint32_t kTooLong = 0xffffffff;  // a value that servers do not deliver

  const std::uint8_t* base;
  unsigned shift;  // a row number counts steps of 1 << shift bytes

  const std::uint8_t* at(std::uint32_t row) const { return base + (static_cast<std::uint64_t>(row) << shift); }
  std::uint64_t key(std::uint32_t row) const { return load_key(at(row)); }
  std::uint32_t length(std::uint32_t row) const {
    std::uint32_t size;
    std::memcpy(&size, at(row) + sizeof(std::uint64_t), sizeof size);
    return size;
  }
  Value value(std::uint32_t row) const {
    const std::uint32_t size = length(row);
    if (size == kTooLong) return {nullptr, size, false};
    return {at(row) + kHead, size, true};
  }
  void prefetch(std::uint32_t row) const {
    cube::prefetch(at(row));
    cube::prefetch(at(row) + 64);  // most values extend beyond the first line
  }
};

class Table {
 public:
  // Allocates room for `rows` rows whose values are all `width` bytes long.
  static Table of_width(std::uint64_t rows, std::uint32_t width);
  // Allocates room for `rows` rows whose values together have at most `value_bytes` bytes.
  static Table of_any_width(std::uint64_t rows, std::uint64_t value_bytes);

  // True if values of this length fit; only tables of one width refuse some.
  bool takes(std::uint32_t size) const { return !fixed_ || size + sizeof(std::uint64_t) == stride_; }
  // Adds a row. A null value is too long to deliver: its key will not be found.
  void put(std::uint64_t key, const std::uint8_t* value, std::uint32_t size);
  // Call once, after the last put(). Nothing can be looked up before.
  void finish();

  const Tally& tally() const { return tally_; }
  std::size_t memory_bytes() const { return used_ + buckets_.memory_bytes(); }

  void lookup(std::span<const std::uint64_t> keys, std::span<Value> out) const {
    with_rows([&](const auto& rows) { buckets_.lookup(keys, out, rows); });
  }

  // Calls visit(key, value) for every row, in insertion order.
  template <class Visit>
  void for_each(Visit visit) const {
    with_rows([&](const auto& rows) {
      for (std::uint64_t at = 0; at < used_;) {
        const auto row = row_at(at);
        at += row_bytes(rows, row);
        const Value value = rows.value(row);
        const std::uint64_t key = rows.key(row);
        if (value.found && (tally_.duplicates == 0 || current(key, row, rows))) visit(key, value);
      }
    });
  }

 private:
  friend class Indexer;

  Table(std::uint64_t rows, std::uint64_t arena_bytes) : buckets_(rows), arena_(Pages::zeroed(arena_bytes)) {}

  template <class Use>
  void with_rows(Use use) const {
    if (fixed_) {
      use(FixedRows{arena_.data(), stride_});
    } else {
      use(VariableRows{arena_.data(), shift_});
    }
  }
  template <class Rows>
  bool current(std::uint64_t key, std::uint32_t row, const Rows& rows) const {
    const std::uint32_t* found = buckets_.find(Buckets::hash(key), key, rows);
    return found != nullptr && *found == row;
  }
  std::uint32_t row_at(std::uint64_t offset) const {
    return static_cast<std::uint32_t>(fixed_ ? offset / stride_ : offset >> shift_);
  }
  std::uint64_t row_bytes(const FixedRows& rows, std::uint32_t) const { return rows.stride; }
  std::uint64_t row_bytes(const VariableRows& rows, std::uint32_t row) const {
    const std::uint32_t size = rows.length(row);
    return padded(VariableRows::kHead + (size == VariableRows::kTooLong ? 0 : size));
  }
  std::uint64_t padded(std::uint64_t size) const { return (size + (1ULL << shift_) - 1) >> shift_ << shift_; }
  void index_to(std::uint64_t end);

  bool fixed_ = false;
  std::size_t stride_ = 0;  // fixed rows: key and value
  unsigned shift_ = 0;      // other rows: see VariableRows
  Buckets buckets_;
  Pages arena_;
  std::uint64_t used_ = 0;
  Tally tally_;

  // The rows before `indexed_` are in the buckets; owned by the indexing thread, if there is one.
  std::uint64_t indexed_ = 0;
  Tally replaced_;
};

// Indexes a table's rows on a thread of its own during insertion, which takes about as long as reading them.
class Indexer {
 public:
  explicit Indexer(Table& table);
  ~Indexer();
  // Indexes the rows inserted so far; call it now and then.
  void advance();

 private:
  static constexpr std::uint64_t kStop = ~std::uint64_t{0};

  Table& table_;
  std::atomic<std::uint64_t> ready_{0};
  std::jthread thread_;
};

}  // namespace cloudedge::cube
