// Any bytes and any places in them as a table. Input: u64 offset of the keys, u64 offset of the values, u64 rows,
// u32 width, then the file.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../../../native/cube/table_source.hpp"
#include "scratch.hpp"

using namespace cloudedge;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Scratch scratch;
  std::uint64_t places[3] = {};
  std::uint32_t width = 0;
  if (size < sizeof places + sizeof width) return 0;
  std::memcpy(places, data, sizeof places);
  std::memcpy(&width, data + sizeof places, sizeof width);
  const std::size_t head = sizeof places + sizeof width;
  const std::string path = scratch.write("table", {data + head, size - head});
  try {
    cube::TableSource source(path, places[0], places[1], places[2], width);
    seqfile::Record row;
    std::uint64_t rows = 0;
    std::uint64_t sum = 0;
    while (source.next(row)) {
      fuzz::require(row.size == width && ++rows <= places[2]);
      for (std::uint32_t i = 0; i < row.size; ++i) sum += row.value[i];
    }
    fuzz::require(rows == places[2] && sum <= rows * width * 255);
  } catch (const FileError& error) {
    fuzz::require(error.kind() == FileError::Kind::kDamaged);
  }
  return 0;
}
