#include "table_source.hpp"

#include <cstring>

namespace cloudedge::cube {
namespace {

void require_inside(const ByteStream& file, std::uint64_t offset, std::uint64_t rows, std::uint64_t width) {
  if (offset <= file.size() && (width == 0 || rows <= (file.size() - offset) / width)) return;
  throw_damaged(file.path(), file.size(), "the file ends before the " + std::to_string(rows) + " rows of " +
                                              std::to_string(width) + " bytes that start at byte " +
                                              std::to_string(offset));
}

}  // namespace

TableSource::TableSource(const std::string& path, std::uint64_t keys_offset, std::uint64_t values_offset,
                         std::uint64_t rows, std::uint32_t width)
    : keys_(path), values_(path), rows_(rows), width_(width) {
  require_inside(keys_, keys_offset, rows, sizeof(std::uint64_t));
  require_inside(values_, values_offset, rows, width);
  keys_.seek(keys_offset);
  values_.seek(values_offset);
}

bool TableSource::next(seqfile::Record& record) {
  if (row_ == rows_) return false;
  record.offset = keys_.offset();
  std::memcpy(&record.key, keys_.peek(sizeof record.key), sizeof record.key);
  if (row_ > 0 && record.key <= last_key_) {
    throw_damaged(path(), record.offset, "key " + std::to_string(record.key) + " of row " + std::to_string(row_) +
                                             " comes after key " + std::to_string(last_key_) +
                                             "; a table's keys ascend and are there once");
  }
  record.value = values_.peek(width_);
  record.size = width_;
  keys_.skip(sizeof record.key);
  values_.skip(width_);
  last_key_ = record.key;
  ++row_;
  return true;
}

}  // namespace cloudedge::cube
