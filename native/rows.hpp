// Sorted rows: a table is `n` unique ascending uint64 keys and one or more byte columns of fixed width. This code
// compares, merges and sums rows at memory speed; it knows no dtypes, files or Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace cloudedge {

struct Column {
  const std::uint8_t* data;
  std::size_t width;  // bytes in one row
  const std::uint8_t* row(std::size_t i) const { return data + i * width; }
};

struct MutableColumn {
  std::uint8_t* data;
  std::size_t width;
};

struct Rows {
  std::span<const std::uint64_t> keys;
  std::vector<Column> columns;
  std::size_t size() const { return keys.size(); }
};

// The checksum of a set of rows: the sum, lane by lane, of a 128-bit hash of each row. A sum does not depend on the
// order of rows, is the same however the rows are split into shards and added up again, and follows a delta in time
// proportional to the delta (subtract the old row, add the new one). It detects damage and mix-ups; SHA-256 on the
// files protects against forgery.
struct Checksum {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  Checksum& operator+=(const Checksum& other) {
    low += other.low;
    high += other.high;
    return *this;
  }
  Checksum& operator-=(const Checksum& other) {
    low -= other.low;
    high -= other.high;
    return *this;
  }
  bool operator==(const Checksum&) const = default;
};

// Hash of one row: its key and its bytes. `docs/reference/bundle.md` defines it; changing it changes every checksum.
class RowHash {
 public:
  explicit RowHash(std::uint64_t key) : state_(mix(key ^ kSeed0, kSeed1)) {}

  void add(const std::uint8_t* data, std::size_t size) {
    length_ += size;
    while (size >= 16) {
      state_ = mix(state_ ^ load(data, 8), kSeed2 ^ load(data + 8, 8));
      data += 16;
      size -= 16;
    }
    if (size > 0) {
      const std::size_t first = size < 8 ? size : 8;
      state_ = mix(state_ ^ load(data, first), kSeed2 ^ load(data + first, size - first) ^ size);
    }
  }

  Checksum finish() const {
    const std::uint64_t low = mix(state_ ^ kSeed3, length_ ^ kSeed1);
    return {low, mix(low ^ kSeed0, state_ ^ kSeed2)};
  }

 private:
  static constexpr std::uint64_t kSeed0 = 0x9e3779b97f4a7c15;
  static constexpr std::uint64_t kSeed1 = 0xbf58476d1ce4e5b9;
  static constexpr std::uint64_t kSeed2 = 0x94d049bb133111eb;
  static constexpr std::uint64_t kSeed3 = 0xd6e8feb86659fd93;

  static std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64) ^ (a + b);
  }
  static std::uint64_t load(const std::uint8_t* data, std::size_t size) {
    std::uint64_t word = 0;
    std::memcpy(&word, data, size);
    return word;
  }

  std::uint64_t state_;
  std::uint64_t length_ = 0;
};

Checksum checksum(const Rows& rows);

// The index of the first key that is not above its predecessor (`before` stands in for row -1 when `has_before`), or -1
// if keys ascend strictly.
std::int64_t first_disorder(std::span<const std::uint64_t> keys, std::uint64_t before, bool has_before);

struct Difference {
  std::vector<std::uint64_t> added;    // rows of `after` whose key `before` does not have
  std::vector<std::uint64_t> changed;  // rows of `after` whose key `before` has with other bytes
  std::vector<std::uint64_t> removed;  // rows of `before` whose key `after` does not have
};

Difference diff(const Rows& before, const Rows& after);

// The number of rows of `base` after `keys` are added and `removed` are removed. Throws std::invalid_argument when a
// removed key is missing: the delta belongs to another base.
std::size_t merged_size(std::span<const std::uint64_t> base, std::span<const std::uint64_t> keys,
                        std::span<const std::uint64_t> removed);

// Writes `base` with `delta` added and `removed` removed. The outputs have merged_size() rows. `out_keys` may be null
// when the delta only replaces rows: the keys then are the base's.
void merge(const Rows& base, const Rows& delta, std::span<const std::uint64_t> removed, std::uint64_t* out_keys,
           std::span<const MutableColumn> out_columns);

// Turns `rows` rows of `width` bytes into `width` planes of `rows` bytes: the first bytes of all rows, then the second
// ones and so on. Bytes of the same meaning end up together, which compresses well.
void to_planes(const std::uint8_t* rows, std::size_t count, std::size_t width, std::uint8_t* planes);
void from_planes(const std::uint8_t* planes, std::size_t count, std::size_t width, std::uint8_t* rows);

}  // namespace cloudedge
