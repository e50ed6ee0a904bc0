#include "builder.hpp"

#include <algorithm>

#include "duplicates.hpp"

namespace cloudedge::cube {
namespace {

constexpr std::size_t kBufferBytes = 64 << 20;  // for all blocks together
constexpr std::size_t kSpareBlocks = 16;        // being written while the parts fill theirs
constexpr std::size_t kLargestBlock = 1 << 20;
constexpr std::size_t kSmallestBlock = 4096;  // holds several of the longest records
constexpr std::uint64_t kKeysAtOnce = 8 << 20;  // checked for duplicates at once, over all threads; 15 bytes each

std::size_t block_count(std::size_t parts) { return 2 * parts + kSpareBlocks; }

std::size_t block_bytes(std::size_t parts) {
  const std::size_t share = kBufferBytes / block_count(parts) / kSmallestBlock * kSmallestBlock;
  return std::clamp(share, kSmallestBlock, kLargestBlock);
}

}  // namespace

Builder::Builder(const std::vector<std::string>& directories, const std::vector<PartFiles>& before,
                 std::uint64_t data_file_limit, unsigned threads)
    : threads_(threads), pool_(threads, block_count(directories.size()), block_bytes(directories.size())) {
  parts_.reserve(directories.size());
  for (std::size_t i = 0; i < directories.size(); ++i) {
    parts_.emplace_back(pool_, directories[i], before.empty() ? PartFiles{} : before[i], data_file_limit);
  }
}

void Builder::add(const seqfile::Record& row, const std::string& path) {
  if (row.size > kMaxValue) {
    throw_refused(path, row.offset, "key " + std::to_string(row.key) + " has a value of " + std::to_string(row.size) +
                                        " bytes; servers answer 'not found' for more than 1024");
  }
  PartWriter& part = parts_[row.key % parts_.size()];
  if (part.full()) {
    throw_refused(path, row.offset, "a part holds at most 4294967295 entries; use more shards");
  }
  part.append(row.key, row.value, row.size);
}

std::vector<std::uint64_t> Builder::added() const {
  std::vector<std::uint64_t> counts;
  for (const PartWriter& part : parts_) counts.push_back(part.added());
  return counts;
}

std::vector<BuiltPart> Builder::finish() {
  for (PartWriter& part : parts_) part.flush();
  pool_.drain();
  std::vector<BuiltPart> built(parts_.size());
  const std::uint64_t keys_each = kKeysAtOnce / std::clamp<std::size_t>(threads_, 1, std::max<std::size_t>(parts_.size(), 1));
  in_parallel(threads_, parts_.size(), [&](std::size_t i) {
    const PartWriter& part = parts_[i];
    write_part_files(part.directory(), part.files());
    for (const std::string& path : part.new_paths()) sync_path(path);
    sync_path(part.directory());
    const std::uint64_t duplicates = part.ascending() ? 0 : count_duplicates(part.new_index_path(), keys_each);
    built[i] = {part.files(), part.added(), duplicates, part.checksum()};
  });
  return built;
}

}  // namespace cloudedge::cube
