// Any bytes as a SequenceFile: read strictly, read past damage, read as a table. The three must agree.
#include <cstddef>
#include <cstdint>
#include <optional>

#include "../../../native/seqfile.hpp"
#include "scratch.hpp"

using namespace cloudedge;

namespace {

struct Seen {
  std::uint64_t records = 0;
  std::uint64_t sum = 0;
  std::uint64_t skipped = 0;
};

std::optional<Seen> read(const std::string& path, seqfile::Damage damage) {
  Seen seen;
  try {
    seqfile::Reader reader(path, damage);
    seqfile::Record record;
    std::uint64_t last = 0;
    while (reader.next(record)) {
      fuzz::require(record.offset >= last && record.offset + 16 + record.size <= reader.size());
      last = record.offset + 16 + record.size;
      ++seen.records;
      seen.sum += record.key;
      for (std::uint32_t i = 0; i < record.size; ++i) seen.sum = seen.sum * 31 + record.value[i];
    }
    seen.skipped = reader.skipped_bytes();
    fuzz::require(reader.offset() == reader.size() && seen.skipped <= reader.size());
  } catch (const FileError& error) {
    fuzz::require(error.kind() == FileError::Kind::kDamaged && error.offset() >= 0);
    return std::nullopt;
  }
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Scratch scratch;
  const std::string path = scratch.write("file", {data, size});
  const auto strict = read(path, seqfile::Damage::kRefuse);
  const auto lenient = read(path, seqfile::Damage::kSkip);
  if (strict) {
    fuzz::require(lenient && lenient->records == strict->records && lenient->sum == strict->sum);
    fuzz::require(lenient->skipped == 0);
  } else if (lenient) {
    fuzz::require(lenient->skipped > 0);
  }
  try {
    const auto table = seqfile::read_table(path);
    fuzz::require(strict && table.rows == strict->records);
  } catch (const FileError& error) {
    fuzz::require(!strict || error.kind() == FileError::Kind::kRefused);
  }
  return 0;
}
