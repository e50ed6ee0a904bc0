// The files of one part as upstream's builder writes them, all little-endian:
//   data.<j>   records back to back: u32 length of value + 4, value
//   index.<k>  entries of u64 key, u64 address (data file number << 32 | offset of the record)
//   data.n     u32 number of data files, u32 length of each
//   index.n    u32 type, u32 entries in all, u32 number of index files, u64 length of each
// Entries and records are in the same order, which makes damage detectable: see PartReader.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../files.hpp"

namespace cloudedge::cube {

constexpr std::uint32_t kMaxValue = 1024;             // servers answer "not found" for longer values
constexpr std::uint64_t kDataFileLimit = 1073741824;  // a record that would exceed it starts the next file
constexpr std::size_t kEntryBytes = 16;
constexpr std::size_t kPrefixBytes = 4;

// The contents of data.n and index.n.
struct PartFiles {
  std::vector<std::uint32_t> data_lengths;
  std::vector<std::uint64_t> index_lengths;
  std::uint32_t entries = 0;

  bool operator==(const PartFiles&) const = default;
  // True if this list begins with all of `base` and has at least one more index file.
  bool continues(const PartFiles& base) const;
};

std::string data_path(const std::string& directory, std::size_t number);
std::string index_path(const std::string& directory, std::size_t number);

PartFiles read_part_files(const std::string& directory);
void write_part_files(const std::string& directory, const PartFiles& files);

struct Entry {
  std::uint64_t key;
  std::uint64_t address;
  const std::uint8_t* value;  // valid until the next entry is read; null when longer than kMaxValue
  std::uint32_t size;
};

// The keys that a part may hold: those with key mod `of` == `number`; any key when `of` is 0.
struct Shard {
  std::uint32_t number = 0;
  std::uint32_t of = 0;
};

// Walks index and data files side by side. Every address must be the end of the previous record, and every file must
// have its listed length and be used up exactly: a truncated file or a flipped bit in an address, a length or a list is
// refused at its offset. (Flipped bits in keys and values show in the version's checksum.)
class PartReader {
 public:
  // The first files of a cumulative delta are its base's; those from `first_*` on must exist.
  PartReader(std::string directory, PartFiles files, Shard shard = {}, std::size_t first_index = 0,
             std::size_t first_data = 0);

  bool next(Entry& entry);

 private:
  bool open_index();
  void open_data();
  void require_used_up() const;

  std::string directory_;
  PartFiles files_;
  Shard shard_;
  std::size_t index_number_;
  std::size_t data_number_;
  std::optional<ByteStream> index_;
  std::optional<ByteStream> data_;
};

}  // namespace cloudedge::cube
