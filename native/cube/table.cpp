#include "table.hpp"

namespace cloudedge::cube {

Table Table::of_width(std::uint64_t rows, std::uint32_t width) {
  const std::size_t stride = sizeof(std::uint64_t) + width;
  Table table(rows, rows * stride);
  table.fixed_ = true;
  table.stride_ = stride;
  return table;
}

Table Table::of_any_width(std::uint64_t rows, std::uint64_t value_bytes) {
  // Row numbers are 32 bits wide; larger tables count in larger steps and lose a little more to padding.
  unsigned shift = 3;
  const auto bytes = [&] { return rows * (VariableRows::kHead + (1ULL << shift) - 1) + value_bytes; };
  while (bytes() >> shift > 0xffffffff) ++shift;
  Table table(rows, bytes());
  table.shift_ = shift;
  return table;
}

void Table::put(std::uint64_t key, const std::uint8_t* value, std::uint32_t size) {
  std::uint8_t* at = arena_.data() + used_;
  std::memcpy(at, &key, sizeof key);
  const std::uint32_t row = row_at(used_);
  if (fixed_) {
    std::memcpy(at + sizeof key, value, size);
    used_ += stride_;
  } else {
    const std::uint32_t marked = value != nullptr ? size : VariableRows::kTooLong;
    std::memcpy(at + sizeof key, &marked, sizeof marked);
    if (value != nullptr) std::memcpy(at + VariableRows::kHead, value, size);
    used_ += padded(VariableRows::kHead + (value != nullptr ? size : 0));
  }
  // The bucket is needed 32 rows from now; by then it is here.
  const std::uint64_t hash = Buckets::hash(key);
  buckets_.prefetch_home(hash);
  pending_[pending_count_++] = {hash, row};
  if (pending_count_ == kPending) settle();
}

void Table::settle() {
  with_rows([&](const auto& rows) {
    for (std::size_t i = 0; i < pending_count_; ++i) {
      tally_.index(buckets_, pending_[i].hash, pending_[i].row, rows);
    }
  });
  pending_count_ = 0;
}

void Table::finish() {
  settle();
  arena_.shrink(used_);
}

}  // namespace cloudedge::cube
