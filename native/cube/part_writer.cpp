#include "part_writer.hpp"

#include <cstring>
#include <utility>

namespace cloudedge::cube {

PartWriter::PartWriter(WritePool& pool, std::string directory, PartFiles before, std::uint64_t data_file_limit)
    : pool_(pool), directory_(std::move(directory)), before_(std::move(before)), limit_(data_file_limit) {}

void PartWriter::append(std::uint64_t key, const std::uint8_t* value, std::uint32_t size) {
  const std::uint32_t total = size + static_cast<std::uint32_t>(kPrefixBytes);
  std::uint64_t offset = data_written_ + (data_ != nullptr ? data_->filled : 0);
  if (offset + total > limit_) {
    flush_data();
    closed_.push_back(static_cast<std::uint32_t>(data_written_));
    data_written_ = 0;
    offset = 0;
  }
  if (data_ != nullptr && data_->filled + total > pool_.block_bytes()) flush_data();
  if (data_ == nullptr) data_ = pool_.acquire();
  std::uint8_t* record = data_->data.get() + data_->filled;
  std::memcpy(record, &total, kPrefixBytes);
  std::memcpy(record + kPrefixBytes, value, size);
  data_->filled += total;

  if (index_ != nullptr && index_->filled + kEntryBytes > pool_.block_bytes()) flush_index();
  if (index_ == nullptr) index_ = pool_.acquire();
  const std::uint64_t address = (before_.data_lengths.size() + closed_.size()) << 32 | offset;
  std::uint8_t* entry = index_->data.get() + index_->filled;
  std::memcpy(entry, &key, sizeof key);
  std::memcpy(entry + sizeof key, &address, sizeof address);
  index_->filled += kEntryBytes;

  ascending_ = ascending_ && (added_ == 0 || key > last_key_);
  last_key_ = key;
  checksum_ += row_checksum(key, {value, size, true});
  ++added_;
}

void PartWriter::flush_data() {
  if (data_ == nullptr) return;
  const std::uint64_t size = data_->filled;
  pool_.submit(data_path(directory_, before_.data_lengths.size() + closed_.size()), data_written_,
               std::exchange(data_, nullptr));
  data_written_ += size;
}

void PartWriter::flush_index() {
  if (index_ == nullptr) return;
  const std::uint64_t size = index_->filled;
  pool_.submit(new_index_path(), index_written_, std::exchange(index_, nullptr));
  index_written_ += size;
}

void PartWriter::flush() {
  flush_data();
  flush_index();
}

PartFiles PartWriter::files() const {
  PartFiles files = before_;
  if (added_ == 0) return files;
  files.data_lengths.insert(files.data_lengths.end(), closed_.begin(), closed_.end());
  files.data_lengths.push_back(static_cast<std::uint32_t>(data_written_));
  files.index_lengths.push_back(index_written_);
  files.entries += static_cast<std::uint32_t>(added_);
  return files;
}

std::vector<std::string> PartWriter::new_paths() const {
  if (added_ == 0) return {};
  std::vector<std::string> paths{new_index_path()};
  for (std::size_t i = 0; i <= closed_.size(); ++i) {
    paths.push_back(data_path(directory_, before_.data_lengths.size() + i));
  }
  return paths;
}

}  // namespace cloudedge::cube
