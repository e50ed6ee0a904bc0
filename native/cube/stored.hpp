// Versions that come from a part's files: in memory, mapped, or on top of another one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "layout.hpp"
#include "table.hpp"
#include "version.hpp"

namespace cloudedge::cube {

class StoredVersion : public Version {
 public:
  using Visit = std::function<void(std::uint64_t key, const Value& value)>;

  StoredVersion(std::string name, PartFiles files) : name_(std::move(name)), files_(std::move(files)) {}

  const std::string& name() const override { return name_; }
  // The files that data.n and index.n of its directory list; a cumulative delta continues them.
  const PartFiles& files() const { return files_; }
  virtual const Tally& tally() const = 0;
  std::uint64_t rows() const override { return tally().rows; }
  Checksum checksum() const override { return tally().checksum; }
  virtual void for_each(const Visit& visit) const = 0;

 private:
  std::string name_;
  PartFiles files_;
};

using StoredPtr = std::shared_ptr<const StoredVersion>;

// All rows in memory.
class TableVersion final : public StoredVersion {
 public:
  TableVersion(std::string name, PartFiles files, Table table)
      : StoredVersion(std::move(name), std::move(files)), table_(std::move(table)) {}

  const Tally& tally() const override { return table_.tally(); }
  std::size_t memory_bytes() const override { return table_.memory_bytes(); }
  void lookup(std::span<const std::uint64_t> keys, std::span<Value> out) const override { table_.lookup(keys, out); }
  void for_each(const Visit& visit) const override { table_.for_each(visit); }

 private:
  Table table_;
};

// Only the buckets in memory; keys, addresses and values stay in the files, which must not change meanwhile.
class MappedVersion final : public StoredVersion {
 public:
  // `reader` walks the same files from their beginning; it has checked their lengths.
  MappedVersion(std::string name, PartFiles files, const std::string& directory, PartReader reader);

  const Tally& tally() const override { return tally_; }
  std::size_t memory_bytes() const override { return buckets_.memory_bytes(); }
  void lookup(std::span<const std::uint64_t> keys, std::span<Value> out) const override;
  void for_each(const Visit& visit) const override;

 private:
  struct Rows {
    struct IndexFile {
      std::uint32_t first;  // number of its first entry
      const std::uint8_t* entries;
    };
    std::vector<IndexFile> index;
    std::vector<const std::uint8_t*> data;

    const std::uint8_t* entry(std::uint32_t row) const;
    std::uint64_t key(std::uint32_t row) const { return load_key(entry(row)); }
    Value value(std::uint32_t row) const;
    void prefetch(std::uint32_t row) const { cube::prefetch(entry(row)); }
  };

  std::vector<Pages> pages_;
  Rows rows_;
  Buckets buckets_;
  Tally tally_;
};

struct LoadOptions {
  bool map = false;                  // leave the rows in the files
  std::optional<Checksum> expected;  // refuse rows with another checksum
  Shard shard;                       // refuse keys of other shards
};

// Loads a part's directory.
StoredPtr load(const std::string& directory, const std::string& name, const LoadOptions& options);

// Loads a delta's directory on top of a version: a cumulative one (its lists continue the base's; only the new files
// are read), an empty one (its lists equal the base's), or a self-contained one (all its rows go on top).
StoredPtr load_patch(const VersionPtr& base, const std::string& directory, const std::string& name,
                     const LoadOptions& options);

}  // namespace cloudedge::cube
