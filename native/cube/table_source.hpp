// Reads rows of a table file (ascending keys in one stretch of it, values of one width in another) front to back.
#pragma once

#include <cstdint>
#include <string>

#include "../files.hpp"
#include "../seqfile.hpp"

namespace cloudedge::cube {

class TableSource {
 public:
  TableSource(const std::string& path, std::uint64_t keys_offset, std::uint64_t values_offset, std::uint64_t rows,
              std::uint32_t width);

  // Reads the next row; false after the last. Its offset is that of its key in the file.
  bool next(seqfile::Record& record);

  const std::string& path() const { return keys_.path(); }
  // Bytes of rows read so far.
  std::uint64_t offset() const { return row_ * (sizeof(std::uint64_t) + width_); }

 private:
  ByteStream keys_;
  ByteStream values_;
  std::uint64_t rows_;
  std::uint32_t width_;
  std::uint64_t row_ = 0;
  std::uint64_t last_key_ = 0;
};

}  // namespace cloudedge::cube
