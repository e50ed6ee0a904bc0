#include "stored.hpp"

namespace cloudedge::cube {

const std::uint8_t* MappedVersion::Rows::entry(std::uint32_t row) const {
  std::size_t file = index.size() - 1;  // few index files: a base has one, each delta adds one
  while (row < index[file].first) --file;
  return index[file].entries + static_cast<std::size_t>(row - index[file].first) * kEntryBytes;
}

Value MappedVersion::Rows::value(std::uint32_t row) const {
  const std::uint64_t address = load_key(entry(row) + sizeof(std::uint64_t));
  const std::uint8_t* record = data[address >> 32] + (address & 0xffffffff);
  std::uint32_t total;
  std::memcpy(&total, record, sizeof total);
  const auto size = total - static_cast<std::uint32_t>(kPrefixBytes);
  if (size > kMaxValue) return {nullptr, size, false};
  return {record + kPrefixBytes, size, true};
}

MappedVersion::MappedVersion(std::string name, PartFiles files, const std::string& directory, PartReader reader)
    : StoredVersion(std::move(name), std::move(files)), buckets_(this->files().entries) {
  std::uint32_t first = 0;
  const auto map = [&](const std::string& path, std::uint64_t listed) {
    const InputFile file(path);
    if (file.size() < listed) throw_damaged(path, file.size(), "the file became shorter while it was read");
    return pages_.emplace_back(Pages::of_file(file)).data();
  };
  for (std::size_t i = 0; i < this->files().index_lengths.size(); ++i) {
    rows_.index.push_back({first, map(index_path(directory, i), this->files().index_lengths[i])});
    first += static_cast<std::uint32_t>(this->files().index_lengths[i] / kEntryBytes);
  }
  for (std::size_t i = 0; i < this->files().data_lengths.size(); ++i) {
    rows_.data.push_back(map(data_path(directory, i), this->files().data_lengths[i]));
  }
  RowIndexer indexer(buckets_, rows_, tally_);
  Entry entry;
  for (std::uint32_t row = 0; reader.next(entry); ++row) {
    tally_.add(entry.key, {entry.value, entry.size, entry.value != nullptr});
    indexer.add(row);
  }
  indexer.finish();
}

void MappedVersion::lookup(std::span<const std::uint64_t> keys, std::span<Value> out) const {
  buckets_.lookup(keys, out, rows_);
}

void MappedVersion::for_each(const Visit& visit) const {
  for (std::uint32_t row = 0; row < files().entries; ++row) {
    const std::uint64_t key = rows_.key(row);
    const Value value = rows_.value(row);
    if (!value.found) continue;
    const std::uint32_t* current = buckets_.find(Buckets::hash(key), key, rows_);
    if (current != nullptr && *current == row) visit(key, value);
  }
}

}  // namespace cloudedge::cube
