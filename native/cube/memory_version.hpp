// A version made of rows in memory, for tests and benchmarks of a server without files. It uses the same table as a
// version loaded from files.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "stored.hpp"

namespace cloudedge::cube {

// `values` holds keys.size() values of `width` bytes.
inline std::shared_ptr<Version> memory_version(std::string name, std::span<const std::uint64_t> keys,
                                               const std::uint8_t* values, std::uint32_t width) {
  const bool too_long = width > kMaxValue;
  Table table = too_long ? Table::of_any_width(keys.size(), 0) : Table::of_width(keys.size(), width);
  for (std::size_t i = 0; i < keys.size(); ++i) table.put(keys[i], too_long ? nullptr : values + i * width, width);
  table.finish();
  return std::make_shared<TableVersion>(std::move(name), PartFiles{}, std::move(table));
}

}  // namespace cloudedge::cube
