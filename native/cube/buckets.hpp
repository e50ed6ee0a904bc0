// A hash index from keys to row numbers, in cache-line buckets. A bucket holds twelve one-byte tags and twelve row
// numbers, so that finding a row touches one line here and then, almost always, only the row itself. The rows hold the
// keys; the index does not repeat them. Built by one thread, then read by many.
#pragma once

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>

#include "../files.hpp"
#include "version.hpp"

namespace cloudedge::cube {

inline void prefetch(const void* at) { __builtin_prefetch(at, 0, 3); }

class Buckets {
 public:
  // Allocates room for `rows` keys.
  explicit Buckets(std::uint64_t rows) : count_(rows / kMeanFill + 1), pages_(Pages::zeroed(count_ * sizeof(Bucket))) {}

  std::size_t memory_bytes() const { return count_ * sizeof(Bucket); }

  static std::uint64_t hash(std::uint64_t key) {
    key ^= key >> 32;
    key *= 0xd6e8feb86659fd93;
    key ^= key >> 32;
    key *= 0xd6e8feb86659fd93;
    return key ^ key >> 32;
  }

  void prefetch_home(std::uint64_t hash) const { prefetch(&bucket(home(hash))); }

  // The row number of a key; null when there is none. A key is in its home bucket or, if that is full, in one of the
  // following up to the first with room.
  template <class Rows>
  const std::uint32_t* find(std::uint64_t hash, std::uint64_t key, const Rows& rows) const {
    for (std::uint64_t at = home(hash);; at = next(at)) {
      const Bucket& here = bucket(at);
      for (std::uint32_t same = here.matches(tag(hash)); same != 0; same &= same - 1) {
        const std::uint32_t* row = &here.rows[std::countr_zero(same)];
        if (rows.key(*row) == key) return row;
      }
      if (here.matches(0) != 0) return nullptr;
    }
  }
  template <class Rows>
  std::uint32_t* find(std::uint64_t hash, std::uint64_t key, const Rows& rows) {
    return const_cast<std::uint32_t*>(std::as_const(*this).find(hash, key, rows));
  }

  // Adds a new key.
  void insert(std::uint64_t hash, std::uint32_t row) {
    for (std::uint64_t at = home(hash);; at = next(at)) {
      Bucket& here = bucket(at);
      const std::uint32_t empty = here.matches(0);
      if (empty == 0) continue;
      const int slot = std::countr_zero(empty);
      here.tags[slot] = tag(hash);
      here.rows[slot] = row;
      return;
    }
  }

  // Looks up many keys: prefetches all buckets of a group, then all rows, so that the waits overlap.
  template <class Rows>
  void lookup(std::span<const std::uint64_t> keys, std::span<Value> out, const Rows& rows) const {
    std::array<std::uint64_t, kGroup> hashes;
    std::array<std::uint32_t, kGroup> guesses;
    for (std::size_t first = 0; first < keys.size(); first += kGroup) {
      const std::size_t n = std::min(kGroup, keys.size() - first);
      for (std::size_t i = 0; i < n; ++i) {
        hashes[i] = hash(keys[first + i]);
        prefetch_home(hashes[i]);
      }
      for (std::size_t i = 0; i < n; ++i) {
        const Bucket& here = bucket(home(hashes[i]));
        const std::uint32_t same = here.matches(tag(hashes[i]));
        guesses[i] = kNone;
        if (same == 0) continue;
        guesses[i] = here.rows[std::countr_zero(same)];
        rows.prefetch(guesses[i]);
      }
      for (std::size_t i = 0; i < n; ++i) {
        const std::uint64_t key = keys[first + i];
        if (guesses[i] != kNone && rows.key(guesses[i]) == key) {
          out[first + i] = rows.value(guesses[i]);
          continue;
        }
        const std::uint32_t* found = find(hashes[i], key, rows);
        out[first + i] = found != nullptr ? rows.value(*found) : Value{nullptr, 0, false};
      }
    }
  }

 private:
  static constexpr std::size_t kSlots = 12;
  // Nine of twelve slots used on average: 7 bytes a key, and 3 % of the keys live in the bucket after their own.
  static constexpr std::uint64_t kMeanFill = 9;
  static constexpr std::size_t kGroup = 32;  // prefetches that hide each other; 16 and 64 measured no better
  static constexpr std::uint32_t kNone = 0xffffffff;

  struct alignas(64) Bucket {
    std::array<std::uint8_t, 16> tags;  // 0: empty; the last four are never used
    std::array<std::uint32_t, kSlots> rows;

    // A bit for each slot with this tag.
    std::uint32_t matches(std::uint8_t tag) const {
#ifdef __SSE2__
      const __m128i all = _mm_load_si128(reinterpret_cast<const __m128i*>(tags.data()));
      const __m128i same = _mm_cmpeq_epi8(all, _mm_set1_epi8(static_cast<char>(tag)));
      return static_cast<std::uint32_t>(_mm_movemask_epi8(same)) & ((1U << kSlots) - 1);
#else
      std::uint32_t bits = 0;
      for (std::size_t i = 0; i < kSlots; ++i) bits |= static_cast<std::uint32_t>(tags[i] == tag) << i;
      return bits;
#endif
    }
  };
  static_assert(sizeof(Bucket) == 64);

  static std::uint8_t tag(std::uint64_t hash) {
    const auto low = static_cast<std::uint8_t>(hash);
    return low != 0 ? low : 1;
  }
  std::uint64_t home(std::uint64_t hash) const {
    return static_cast<std::uint64_t>(static_cast<unsigned __int128>(hash) * count_ >> 64);
  }
  std::uint64_t next(std::uint64_t at) const { return at + 1 == count_ ? 0 : at + 1; }
  Bucket& bucket(std::uint64_t at) const { return reinterpret_cast<Bucket*>(pages_.data())[at]; }

  std::uint64_t count_;
  Pages pages_;
};

}  // namespace cloudedge::cube
