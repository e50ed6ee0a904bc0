// A version that is another one with some rows added and some removed. It shares the other's memory and adds only its
// own rows. Overlays do not pile up: one on an overlay is merged with it, so that a lookup reads at most three tables
// (changed, removed, base), and one that has outgrown its base becomes a table of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stored.hpp"

namespace cloudedge::cube {

class OverlayVersion final : public StoredVersion {
 public:
  OverlayVersion(std::string name, PartFiles files, StoredPtr base, Table changed, Table removed, Tally tally);

  const Tally& tally() const override { return tally_; }
  std::size_t memory_bytes() const override { return changed_.memory_bytes() + removed_.memory_bytes(); }
  void lookup(std::span<const std::uint64_t> keys, std::span<Value> out) const override;
  void for_each(const Visit& visit) const override;

  const StoredPtr& base() const { return base_; }
  const Table& changed() const { return changed_; }
  const Table& removed() const { return removed_; }

 private:
  StoredPtr base_;  // never an overlay itself
  Table changed_;
  Table removed_;  // keys of the base, with empty values
  Tally tally_;
};

// Puts `changed` on top of `base` and removes `removed`. Throws std::invalid_argument when a removed key is missing or
// also changed: the delta belongs to another base.
StoredPtr overlay(const StoredPtr& base, Table changed, std::span<const std::uint64_t> removed,
                  const std::string& name, PartFiles files);

// Casts a version from load(), load_patch() or apply_delta(); std::invalid_argument for any other.
StoredPtr as_stored(const VersionPtr& version);

// The rows of a delta: keys and values of one width.
struct DeltaRows {
  std::span<const std::uint64_t> keys;
  const std::uint8_t* values;
  std::uint32_t width;
};

// The same for rows in memory, on a version from load() or from here. `base_checksum`, if given, must be the base's;
// std::invalid_argument otherwise.
StoredPtr apply_delta(const VersionPtr& base, const DeltaRows& changed, std::span<const std::uint64_t> removed,
                      const std::string& name, const std::optional<Checksum>& base_checksum);

}  // namespace cloudedge::cube
