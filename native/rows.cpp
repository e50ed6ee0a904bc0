#include "rows.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace cloudedge {
namespace {

// Rows compared at once before single rows. With 1 % of rows changed at random, 16 leaves 85 % of the blocks to two
// memcmp calls; larger blocks are more often dirty, smaller ones need more calls.
constexpr std::size_t kBlock = 16;

bool same_bytes(const Rows& a, std::size_t i, const Rows& b, std::size_t j, std::size_t count) {
  for (std::size_t c = 0; c < a.columns.size(); ++c) {
    if (std::memcmp(a.columns[c].row(i), b.columns[c].row(j), count * a.columns[c].width) != 0) return false;
  }
  return true;
}

// The first position at or after `from` whose key is not below `key`: doubling steps, then a binary search, so that
// both a dense and a sparse delta cost little per row.
std::size_t seek(std::span<const std::uint64_t> keys, std::size_t from, std::uint64_t key) {
  std::size_t step = 1;
  std::size_t low = from;
  while (low + step < keys.size() && keys[low + step] < key) {
    low += step;
    step *= 2;
  }
  const std::size_t high = std::min(keys.size(), low + step + 1);
  return static_cast<std::size_t>(std::lower_bound(keys.begin() + low, keys.begin() + high, key) - keys.begin());
}

void require_same_shape(const Rows& a, const Rows& b) {
  bool same = a.columns.size() == b.columns.size();
  for (std::size_t c = 0; same && c < a.columns.size(); ++c) same = a.columns[c].width == b.columns[c].width;
  if (!same) throw std::invalid_argument("the two tables have rows of different width");
}

// out[c][r] = in[r][c], in tiles that stay in the first-level cache on both sides.
void transpose(const std::uint8_t* in, std::size_t rows, std::size_t columns, std::uint8_t* out) {
  constexpr std::size_t kTile = 64;
  for (std::size_t r0 = 0; r0 < rows; r0 += kTile) {
    const std::size_t r1 = std::min(rows, r0 + kTile);
    for (std::size_t c0 = 0; c0 < columns; c0 += kTile) {
      const std::size_t c1 = std::min(columns, c0 + kTile);
      for (std::size_t c = c0; c < c1; ++c) {
        for (std::size_t r = r0; r < r1; ++r) out[c * rows + r] = in[r * columns + c];
      }
    }
  }
}

}  // namespace

void to_planes(const std::uint8_t* rows, std::size_t count, std::size_t width, std::uint8_t* planes) {
  transpose(rows, count, width, planes);
}

void from_planes(const std::uint8_t* planes, std::size_t count, std::size_t width, std::uint8_t* rows) {
  transpose(planes, width, count, rows);
}

Checksum checksum(const Rows& rows) {
  Checksum total;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    RowHash hash(rows.keys[i]);
    for (const Column& column : rows.columns) hash.add(column.row(i), column.width);
    total += hash.finish();
  }
  return total;
}

std::int64_t first_disorder(std::span<const std::uint64_t> keys, std::uint64_t before, bool has_before) {
  if (keys.empty()) return -1;
  if (has_before && keys[0] <= before) return 0;
  for (std::size_t i = 1; i < keys.size(); ++i) {
    if (keys[i] <= keys[i - 1]) return static_cast<std::int64_t>(i);
  }
  return -1;
}

Difference diff(const Rows& before, const Rows& after) {
  require_same_shape(before, after);
  Difference out;
  std::size_t i = 0;
  std::size_t j = 0;
  const std::size_t n = before.size();
  const std::size_t m = after.size();
  while (i < n && j < m) {
    if (i + kBlock <= n && j + kBlock <= m &&
        std::memcmp(&before.keys[i], &after.keys[j], kBlock * sizeof(std::uint64_t)) == 0) {
      if (!same_bytes(before, i, after, j, kBlock)) {
        for (std::size_t r = 0; r < kBlock; ++r) {
          if (!same_bytes(before, i + r, after, j + r, 1)) out.changed.push_back(j + r);
        }
      }
      i += kBlock;
      j += kBlock;
    } else if (before.keys[i] == after.keys[j]) {
      if (!same_bytes(before, i, after, j, 1)) out.changed.push_back(j);
      ++i;
      ++j;
    } else if (before.keys[i] < after.keys[j]) {
      out.removed.push_back(i++);
    } else {
      out.added.push_back(j++);
    }
  }
  for (; i < n; ++i) out.removed.push_back(i);
  for (; j < m; ++j) out.added.push_back(j);
  return out;
}

std::size_t merged_size(std::span<const std::uint64_t> base, std::span<const std::uint64_t> keys,
                        std::span<const std::uint64_t> removed) {
  std::size_t position = 0;
  std::size_t added = 0;
  for (const std::uint64_t key : keys) {
    position = seek(base, position, key);
    if (position == base.size() || base[position] != key) ++added;
  }
  position = 0;
  for (const std::uint64_t key : removed) {
    position = seek(base, position, key);
    if (position == base.size() || base[position] != key) {
      throw std::invalid_argument("the delta removes key " + std::to_string(key) + ", which its base does not have");
    }
  }
  return base.size() + added - removed.size();
}

void merge(const Rows& base, const Rows& delta, std::span<const std::uint64_t> removed, std::uint64_t* out_keys,
           std::span<const MutableColumn> out_columns) {
  require_same_shape(base, delta);
  std::size_t written = 0;
  const auto copy = [&](const Rows& from, std::size_t first, std::size_t count) {
    if (count == 0) return;
    if (out_keys != nullptr) std::memcpy(out_keys + written, &from.keys[first], count * sizeof(std::uint64_t));
    for (std::size_t c = 0; c < from.columns.size(); ++c) {
      const std::size_t width = from.columns[c].width;
      std::memcpy(out_columns[c].data + written * width, from.columns[c].row(first), count * width);
    }
    written += count;
  };
  std::size_t position = 0;  // in base
  std::size_t d = 0;
  std::size_t r = 0;
  while (d < delta.size() || r < removed.size()) {
    const bool take = r == removed.size() || (d < delta.size() && delta.keys[d] < removed[r]);
    const std::uint64_t key = take ? delta.keys[d] : removed[r];
    const std::size_t next = seek(base.keys, position, key);
    copy(base, position, next - position);
    position = next + (next < base.size() && base.keys[next] == key ? 1 : 0);
    if (take) {
      copy(delta, d++, 1);
    } else {
      ++r;
    }
  }
  copy(base, position, base.size() - position);
}

}  // namespace cloudedge
