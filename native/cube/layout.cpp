#include "layout.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace cloudedge::cube {
namespace {

// File lists are short: a part of 1 TB has a thousand files. A longer list is damaged.
constexpr std::uint64_t kMaxListBytes = 1 << 20;

template <class T>
T load(const std::uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::vector<std::uint8_t> read_list(const std::string& path, std::size_t head, std::size_t width) {
  const InputFile file(path);
  if (file.size() < head) throw_damaged(path, file.size(), "the file ends inside its head");
  if (file.size() > kMaxListBytes) throw_damaged(path, kMaxListBytes, "the list of files is longer than 1 MiB");
  std::vector<std::uint8_t> bytes(file.size());
  file.read(0, bytes.data(), bytes.size());
  const std::uint64_t count = load<std::uint32_t>(bytes.data() + head - 4);
  if (head + count * width != bytes.size()) {
    throw_damaged(path, head - 4, "it announces " + std::to_string(count) + " files, which takes " +
                                      std::to_string(head + count * width) + " bytes, and has " +
                                      std::to_string(bytes.size()));
  }
  return bytes;
}

template <class File>
void require_size(const File& file, std::uint64_t listed, const char* list) {
  if (file.size() == listed) return;
  throw_damaged(file.path(), std::min(file.size(), listed),
                "the file has " + std::to_string(file.size()) + " bytes, " + list + " says " +
                    std::to_string(listed));
}

std::string place(std::uint64_t address) {
  return "data." + std::to_string(address >> 32) + " offset " + std::to_string(address & 0xffffffff);
}

}  // namespace

bool PartFiles::continues(const PartFiles& base) const {
  return index_lengths.size() > base.index_lengths.size() && data_lengths.size() >= base.data_lengths.size() &&
         std::equal(base.index_lengths.begin(), base.index_lengths.end(), index_lengths.begin()) &&
         std::equal(base.data_lengths.begin(), base.data_lengths.end(), data_lengths.begin());
}

std::string data_path(const std::string& directory, std::size_t number) {
  return directory + "/data." + std::to_string(number);
}

std::string index_path(const std::string& directory, std::size_t number) {
  return directory + "/index." + std::to_string(number);
}

PartFiles read_part_files(const std::string& directory) {
  PartFiles files;
  const std::string index_list = directory + "/index.n";
  const auto index = read_list(index_list, 12, 8);
  files.entries = load<std::uint32_t>(index.data() + 4);
  std::uint64_t total = 0;
  for (std::size_t at = 12; at < index.size(); at += 8) {
    const auto length = load<std::uint64_t>(index.data() + at);
    if (length % kEntryBytes != 0 || length / kEntryBytes > files.entries) {
      throw_damaged(index_list, at, "an index file of " + std::to_string(length) +
                                        " bytes does not hold whole entries, or more than there are in all");
    }
    total += length / kEntryBytes;
    files.index_lengths.push_back(length);
  }
  if (total != files.entries) {
    throw_damaged(index_list, 4, "it announces " + std::to_string(files.entries) + " entries, its files hold " +
                                     std::to_string(total));
  }
  const auto data = read_list(directory + "/data.n", 4, 4);
  for (std::size_t at = 4; at < data.size(); at += 4) {
    files.data_lengths.push_back(load<std::uint32_t>(data.data() + at));
  }
  return files;
}

void write_part_files(const std::string& directory, const PartFiles& files) {
  const auto put = [](OutputFile& out, auto value) { out.append(&value, sizeof value); };
  OutputFile index(directory + "/index.n", 4096);
  put(index, std::uint32_t{0});  // type: hash
  put(index, files.entries);
  put(index, static_cast<std::uint32_t>(files.index_lengths.size()));
  for (const std::uint64_t length : files.index_lengths) put(index, length);
  index.finish();
  OutputFile data(directory + "/data.n", 4096);
  put(data, static_cast<std::uint32_t>(files.data_lengths.size()));
  for (const std::uint32_t length : files.data_lengths) put(data, length);
  data.finish();
}

PartReader::PartReader(std::string directory, PartFiles files, Shard shard, std::size_t first_index,
                       std::size_t first_data)
    : directory_(std::move(directory)),
      files_(std::move(files)),
      shard_(shard),
      index_number_(first_index),
      data_number_(first_data) {
  // Compare sizes first, so that a file of the wrong size is found before any row is read.
  for (std::size_t i = first_index; i < files_.index_lengths.size(); ++i) {
    require_size(InputFile(index_path(directory_, i)), files_.index_lengths[i], "index.n");
  }
  for (std::size_t i = first_data; i < files_.data_lengths.size(); ++i) {
    require_size(InputFile(data_path(directory_, i)), files_.data_lengths[i], "data.n");
  }
  open_data();
}

bool PartReader::open_index() {
  while (!index_ || index_->left() == 0) {
    if (index_number_ == files_.index_lengths.size()) return false;
    index_.emplace(index_path(directory_, index_number_));
    require_size(*index_, files_.index_lengths[index_number_++], "index.n");
  }
  return true;
}

void PartReader::open_data() {
  if (data_number_ == files_.data_lengths.size()) return;
  data_.emplace(data_path(directory_, data_number_));
  require_size(*data_, files_.data_lengths[data_number_], "data.n");
}

bool PartReader::next(Entry& entry) {
  if (!open_index()) {
    require_used_up();
    return false;
  }
  const std::uint64_t entry_offset = index_->offset();
  const std::uint8_t* at = index_->peek(kEntryBytes);
  entry.key = load<std::uint64_t>(at);
  entry.address = load<std::uint64_t>(at + 8);
  index_->skip(kEntryBytes);
  if (shard_.of != 0 && entry.key % shard_.of != shard_.number) {
    throw_refused(index_->path(), entry_offset, "key " + std::to_string(entry.key) + " belongs to shard " +
                                                    std::to_string(entry.key % shard_.of) + " of " +
                                                    std::to_string(shard_.of) + ", not to shard " +
                                                    std::to_string(shard_.number));
  }
  while (data_ && data_->left() == 0) {
    data_.reset();
    ++data_number_;
    open_data();
  }
  if (!data_) {
    throw_damaged(index_->path(), entry_offset, "an entry for " + place(entry.address) +
                                                    ", but the records of all data files have their entries already");
  }
  const std::uint64_t expected = static_cast<std::uint64_t>(data_number_) << 32 | data_->offset();
  if (entry.address != expected) {
    throw_damaged(index_->path(), entry_offset + 8,
                  "the entry points to " + place(entry.address) + ", its record starts at " + place(expected));
  }
  const std::uint64_t record = data_->offset();
  if (data_->left() < kPrefixBytes) throw_damaged(data_->path(), record, "the file ends inside a record length");
  const auto total = load<std::uint32_t>(data_->peek(kPrefixBytes));
  if (total < kPrefixBytes || total > data_->left()) {
    throw_damaged(data_->path(), record, "record length " + std::to_string(total) + " is not within 4 and the " +
                                             std::to_string(data_->left()) + " bytes left");
  }
  entry.size = total - static_cast<std::uint32_t>(kPrefixBytes);
  entry.value = entry.size > kMaxValue ? nullptr : data_->peek(total) + kPrefixBytes;
  data_->skip(total);
  return true;
}

void PartReader::require_used_up() const {
  std::size_t number = data_number_;
  std::uint64_t left = data_ ? data_->left() : 0;
  while (left == 0 && ++number < files_.data_lengths.size()) left = files_.data_lengths[number];
  if (left == 0 || number >= files_.data_lengths.size()) return;
  const std::uint64_t offset = number == data_number_ && data_ ? data_->offset() : 0;
  throw_damaged(data_path(directory_, number), offset,
                std::to_string(left) + " bytes from here on belong to no entry");
}

}  // namespace cloudedge::cube
