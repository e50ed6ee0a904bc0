// Loads a part's directory as a version: in memory, mapped, or on top of another version.
#include <filesystem>
#include <numeric>

#include "overlay.hpp"
#include "stored.hpp"

namespace cloudedge::cube {
namespace {

void require_checksum(const Version& version, const std::string& directory, const LoadOptions& options) {
  if (!options.expected || version.checksum() == *options.expected) return;
  throw FileError(FileError::Kind::kDamaged, directory, FileError::kNowhere,
                  "the rows do not have the expected checksum: keys or values have changed, or it is another version");
}

// The rows of the files from the given ones on; none when a table of one width meets a value of another width.
std::optional<Table> fill(Table table, PartReader reader) {
  {
    constexpr std::uint64_t kRows = 4096;  // passed to the indexing thread at a time
    Indexer indexer(table);
    Entry entry;
    for (std::uint64_t row = 1; reader.next(entry); ++row) {
      if (!table.takes(entry.size)) return std::nullopt;
      table.put(entry.key, entry.value, entry.size);
      if (row % kRows == 0) indexer.advance();
    }
  }
  table.finish();
  return table;
}

Table read_table(const std::string& directory, const PartFiles& files, std::size_t first_index,
                 std::size_t first_data, const LoadOptions& options) {
  const auto sum = [](const auto& lengths, std::size_t first) {
    return std::accumulate(lengths.begin() + static_cast<std::ptrdiff_t>(first), lengths.end(), std::uint64_t{0});
  };
  const std::uint64_t rows = sum(files.index_lengths, first_index) / kEntryBytes;
  const std::uint64_t bytes = sum(files.data_lengths, first_data);
  // The reader checks listed lengths against real ones before memory is allocated for them.
  const auto reader = [&] { return PartReader(directory, files, options.shard, first_index, first_data); };
  if (rows > 0 && bytes % rows == 0 && bytes / rows >= kPrefixBytes && bytes / rows <= kPrefixBytes + kMaxValue) {
    const auto width = static_cast<std::uint32_t>(bytes / rows - kPrefixBytes);
    PartReader walk = reader();
    if (auto table = fill(Table::of_width(rows, width), std::move(walk))) return std::move(*table);
  }
  PartReader walk = reader();
  return *fill(Table::of_any_width(rows, bytes), std::move(walk));
}

}  // namespace

StoredPtr load(const std::string& directory, const std::string& name, const LoadOptions& options) {
  PartFiles files = read_part_files(directory);
  StoredPtr version;
  if (options.map) {
    PartReader reader(directory, files, options.shard);
    version = std::make_shared<MappedVersion>(name, std::move(files), directory, std::move(reader));
  } else {
    Table table = read_table(directory, files, 0, 0, options);
    version = std::make_shared<TableVersion>(name, std::move(files), std::move(table));
  }
  require_checksum(*version, directory, options);
  return version;
}

StoredPtr load_patch(const VersionPtr& base, const std::string& directory, const std::string& name,
                     const LoadOptions& options) {
  PartFiles files = read_part_files(directory);
  const StoredPtr stored = as_stored(base);
  std::size_t first_index = 0;
  std::size_t first_data = 0;
  // Equal lists mean an empty cumulative delta only if the listed files do not exist: a self-contained delta may have
  // lists of the same lengths by chance.
  const bool empty = files == stored->files() && !std::filesystem::exists(index_path(directory, 0));
  if (empty || files.continues(stored->files())) {
    first_index = stored->files().index_lengths.size();
    first_data = stored->files().data_lengths.size();
  }
  Table table = read_table(directory, files, first_index, first_data, options);
  if (table.tally().long_values > 0) {
    throw FileError(FileError::Kind::kRefused, directory, FileError::kNowhere,
                    "a delta with values of more than 1024 bytes would bring the base's values back for their keys");
  }
  StoredPtr version = overlay(stored, std::move(table), {}, name, std::move(files));
  require_checksum(*version, directory, options);
  return version;
}

}  // namespace cloudedge::cube
