// SequenceFile as Paddle Serving's tools write it: BytesWritable in name, raw bytes in fact; 8-byte little-endian keys,
// values of any length, a sync mark every 2000 payload bytes. Knows nothing of shards or of tables.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "files.hpp"

namespace cloudedge::seqfile {

using Sync = std::array<std::uint8_t, 16>;

struct Record {
  std::uint64_t key;
  const std::uint8_t* value;  // valid until the next record is read
  std::uint32_t size;
  std::uint64_t offset;  // of the record's head in the file
};

// The treatment of a damaged record.
enum class Damage {
  kRefuse,  // an error with its offset
  kSkip,    // skip and count everything up to the next sync mark
};

class Reader {
 public:
  explicit Reader(std::string path, Damage damage = Damage::kRefuse);

  // Reads the next record; false at the end of the file.
  bool next(Record& record);

  const std::string& path() const { return stream_.path(); }
  std::uint64_t size() const { return stream_.size(); }
  std::uint64_t offset() const { return stream_.offset(); }
  std::uint64_t skipped_bytes() const { return skipped_bytes_; }
  std::uint64_t skipped_places() const { return skipped_places_; }

 private:
  void read_header();
  void fault(std::uint64_t offset, const std::string& what);

  ByteStream stream_;
  Damage damage_;
  Sync sync_{};
  std::uint64_t skipped_bytes_ = 0;
  std::uint64_t skipped_places_ = 0;
};

class Writer {
 public:
  Writer(std::string path, const Sync& sync);
  void append(std::uint64_t key, const std::uint8_t* value, std::uint32_t size);
  void finish() { file_.finish(); }

 private:
  OutputFile file_;
  Sync sync_;
  std::uint64_t since_sync_ = 0;
};

// All records of a file whose values have one length.
struct TableRows {
  Pages keys;    // rows x u64
  Pages values;  // rows x width
  std::uint64_t rows = 0;
  std::uint32_t width = 0;
  std::uint64_t skipped_bytes = 0;
};

TableRows read_table(const std::string& path, Damage damage = Damage::kRefuse);

// The longest value of a record, which also bounds the reader's buffer; the builder drops longer ones silently.
constexpr std::uint32_t kMaxValue = 67108860;

}  // namespace cloudedge::seqfile
