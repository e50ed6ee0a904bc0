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
  if (fixed_) {
    std::memcpy(at + sizeof key, value, size);
    used_ += stride_;
  } else {
    const std::uint32_t marked = value != nullptr ? size : VariableRows::kTooLong;
    std::memcpy(at + sizeof key, &marked, sizeof marked);
    if (value != nullptr) std::memcpy(at + VariableRows::kHead, value, size);
    used_ += padded(VariableRows::kHead + (value != nullptr ? size : 0));
  }
  tally_.add(key, {value, size, value != nullptr});
}

void Table::index_to(std::uint64_t end) {
  with_rows([&](const auto& rows) {
    RowIndexer indexer(buckets_, rows, replaced_);
    while (indexed_ < end) {
      const std::uint32_t row = row_at(indexed_);
      indexed_ += row_bytes(rows, row);
      indexer.add(row);
    }
    indexer.finish();
  });
}

void Table::finish() {
  index_to(used_);
  tally_.rows += replaced_.rows;  // negative: minus the replaced rows
  tally_.long_values += replaced_.long_values;
  tally_.duplicates = replaced_.duplicates;
  tally_.checksum += replaced_.checksum;
  arena_.shrink(used_);
}

Indexer::Indexer(Table& table) : table_(table) {
  thread_ = std::jthread([this] {
    for (std::uint64_t done = 0;;) {
      ready_.wait(done, std::memory_order_acquire);
      const std::uint64_t ready = ready_.load(std::memory_order_acquire);
      if (ready == kStop) return;
      table_.index_to(ready);
      done = ready;
    }
  });
}

Indexer::~Indexer() {
  ready_.store(kStop, std::memory_order_release);
  ready_.notify_one();
}

void Indexer::advance() {
  ready_.store(table_.used_, std::memory_order_release);
  ready_.notify_one();
}

}  // namespace cloudedge::cube
