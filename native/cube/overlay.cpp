#include "overlay.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>

namespace cloudedge::cube {
namespace {

constexpr std::size_t kChunk = 256;  // keys looked up at a time, in buffers on the stack

// An overlay of more than a quarter of its base's rows costs more, in memory and per lookup, than one table would.
constexpr std::uint64_t kLargestShare = 4;

Value find(const Version& version, std::uint64_t key) {
  Value value;
  version.lookup({&key, 1}, {&value, 1});
  return value;
}

Value find(const Table& table, std::uint64_t key) {
  Value value;
  table.lookup({&key, 1}, {&value, 1});
  return value;
}

// Calls use(key, value) with the value in `version` of each key of `table`.
template <class Use>
void for_each_old(const Version& version, const Table& table, Use use) {
  std::array<std::uint64_t, kChunk> keys;
  std::array<Value, kChunk> old;
  std::size_t n = 0;
  const auto flush = [&] {
    version.lookup({keys.data(), n}, {old.data(), n});
    for (std::size_t i = 0; i < n; ++i) use(keys[i], old[i]);
    n = 0;
  };
  table.for_each([&](std::uint64_t key, const Value&) {
    keys[n++] = key;
    if (n == kChunk) flush();
  });
  flush();
}

std::uint64_t value_bytes(const Table& table) {
  std::uint64_t total = 0;
  table.for_each([&](std::uint64_t, const Value& value) { total += value.size; });
  return total;
}

Table empty_table(std::uint64_t rows, std::uint64_t bytes, const Lengths& lengths) {
  return lengths.fixed() ? Table::of_width(rows, lengths.longest) : Table::of_any_width(rows, bytes);
}

// The rows of `older` whose keys are neither in `newer` nor in `gone`, then those of `newer`.
Table merged(const Table& older, Table newer, const Table& gone) {
  Lengths lengths = older.tally().lengths;
  lengths.add(newer.tally().lengths);
  Table out = empty_table(older.tally().rows + newer.tally().rows, value_bytes(older) + value_bytes(newer), lengths);
  older.for_each([&](std::uint64_t key, const Value& value) {
    if (!find(gone, key).found) out.put(key, value.data, value.size);
  });
  newer.for_each([&](std::uint64_t key, const Value& value) { out.put(key, value.data, value.size); });
  out.finish();
  return out;
}

Table key_set(std::span<const std::uint64_t> keys) {
  static constexpr std::uint8_t kNothing = 0;
  Table set = Table::of_width(keys.size(), 0);
  for (const std::uint64_t key : keys) set.put(key, &kNothing, 0);
  set.finish();
  return set;
}

// All rows of a version in one table.
StoredPtr flattened(const OverlayVersion& version) {
  std::uint64_t bytes = 0;
  version.for_each([&](std::uint64_t, const Value& value) { bytes += value.size; });
  Table table = empty_table(version.rows(), bytes, version.tally().lengths);
  version.for_each([&](std::uint64_t key, const Value& value) { table.put(key, value.data, value.size); });
  table.finish();
  return std::make_shared<TableVersion>(version.name(), version.files(), std::move(table));
}

}  // namespace

OverlayVersion::OverlayVersion(std::string name, PartFiles files, StoredPtr base, Table changed, Table removed,
                               Tally tally)
    : StoredVersion(std::move(name), std::move(files)),
      base_(std::move(base)),
      changed_(std::move(changed)),
      removed_(std::move(removed)),
      tally_(tally) {}

void OverlayVersion::lookup(std::span<const std::uint64_t> keys, std::span<Value> out) const {
  std::array<std::uint64_t, kChunk> rest;
  std::array<std::size_t, kChunk> places;
  std::array<Value, kChunk> found;
  for (std::size_t first = 0; first < keys.size(); first += kChunk) {
    const std::size_t count = std::min(kChunk, keys.size() - first);
    const auto here = out.subspan(first, count);
    changed_.lookup(keys.subspan(first, count), here);
    std::size_t n = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (here[i].found) continue;
      rest[n] = keys[first + i];
      places[n++] = i;
    }
    if (removed_.tally().rows > 0) {
      removed_.lookup({rest.data(), n}, {found.data(), n});
      std::size_t kept = 0;
      for (std::size_t i = 0; i < n; ++i) {
        if (found[i].found) continue;
        rest[kept] = rest[i];
        places[kept++] = places[i];
      }
      n = kept;
    }
    base_->lookup({rest.data(), n}, {found.data(), n});
    for (std::size_t i = 0; i < n; ++i) here[places[i]] = found[i];
  }
}

void OverlayVersion::for_each(const Visit& visit) const {
  base_->for_each([&](std::uint64_t key, const Value& value) {
    if (!find(changed_, key).found && !find(removed_, key).found) visit(key, value);
  });
  changed_.for_each(visit);
}

StoredPtr overlay(const StoredPtr& base, Table changed, std::span<const std::uint64_t> removed,
                  const std::string& name, PartFiles files) {
  // The new version's totals follow from the removed and the added rows.
  Tally tally;
  tally.rows = base->rows();
  tally.checksum = base->checksum();
  tally.lengths = base->tally().lengths;
  const auto take_out = [&](std::uint64_t key, const Value& value) {
    if (!value.found) return;
    tally.checksum -= row_checksum(key, value);
    --tally.rows;
  };
  for_each_old(*base, changed, take_out);
  const Table gone = key_set(removed);
  gone.for_each([&](std::uint64_t key, const Value&) {
    const Value old = find(*base, key);
    if (!old.found || find(changed, key).found) {
      throw std::invalid_argument("the delta removes key " + std::to_string(key) +
                                  (old.found ? ", which it also changes" : ", which its base does not have"));
    }
    take_out(key, old);
  });
  tally.checksum += changed.tally().checksum;
  tally.rows += changed.tally().rows;
  tally.lengths.add(changed.tally().lengths);
  tally.duplicates = changed.tally().duplicates;
  tally.long_values = changed.tally().long_values;

  StoredPtr root = base;
  std::vector<std::uint64_t> absent(removed.begin(), removed.end());
  if (const auto* below = dynamic_cast<const OverlayVersion*>(base.get())) {
    root = below->base();
    below->removed().for_each([&](std::uint64_t key, const Value&) { absent.push_back(key); });
    changed = merged(below->changed(), std::move(changed), gone);
  }
  // A key that only an earlier overlay had, or that came back, need not be listed as removed.
  std::erase_if(absent, [&](std::uint64_t key) { return find(changed, key).found || !find(*root, key).found; });
  Table hidden = key_set(absent);
  const std::uint64_t rows = changed.tally().rows + hidden.tally().rows;
  auto version = std::make_shared<OverlayVersion>(name, std::move(files), root, std::move(changed), std::move(hidden),
                                                  tally);
  if (rows > root->rows() / kLargestShare) return flattened(*version);
  return version;
}

StoredPtr as_stored(const VersionPtr& version) {
  if (auto stored = std::dynamic_pointer_cast<const StoredVersion>(version)) return stored;
  throw std::invalid_argument("version '" + version->name() + "' does not come from files");
}

StoredPtr apply_delta(const VersionPtr& base, const DeltaRows& changed, std::span<const std::uint64_t> removed,
                      const std::string& name, const std::optional<Checksum>& base_checksum) {
  if (base_checksum && !(base->checksum() == *base_checksum)) {
    throw std::invalid_argument("the delta is for other rows than those of version '" + base->name() + "'");
  }
  if (changed.width > kMaxValue) {
    throw std::invalid_argument("values of " + std::to_string(changed.width) + " bytes; servers deliver at most 1024");
  }
  Table table = Table::of_width(changed.keys.size(), changed.width);
  for (std::size_t i = 0; i < changed.keys.size(); ++i) {
    table.put(changed.keys[i], changed.values + i * changed.width, changed.width);
  }
  table.finish();
  const StoredPtr stored = as_stored(base);
  return overlay(stored, std::move(table), removed, name, stored->files());
}

}  // namespace cloudedge::cube
