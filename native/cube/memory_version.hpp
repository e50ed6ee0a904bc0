// A version made from arrays in memory: for tests and benchmarks that want a server without files.
#pragma once

#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "version.hpp"

namespace cloudedge::cube {

class MemoryVersion final : public Version {
 public:
  // `values` holds keys.size() rows of `width` bytes.
  MemoryVersion(std::string name, std::span<const std::uint64_t> keys, const std::uint8_t* values, std::size_t width)
      : name_(std::move(name)),
        width_(width),
        mask_(std::bit_ceil(keys.size() * 2 + 1) - 1),
        slots_(mask_ + 1, 0),
        rows_(keys.size() * (sizeof(std::uint64_t) + width)) {
    if (keys.size() >= 0xffffffff) throw std::invalid_argument("too many rows for a version in memory");
    for (std::size_t i = 0; i < keys.size(); ++i) {
      std::uint8_t* const row = rows_.data() + i * stride();
      std::memcpy(row, &keys[i], sizeof keys[i]);
      if (width > 0) std::memcpy(row + sizeof keys[i], values + i * width, width);
      std::size_t slot = hash(keys[i]) & mask_;
      while (slots_[slot] != 0) {
        if (key_at(slots_[slot] - 1) == keys[i]) throw std::invalid_argument("two rows with one key");
        slot = (slot + 1) & mask_;
      }
      slots_[slot] = static_cast<std::uint32_t>(i + 1);
    }
    checksum_ = cloudedge::checksum({keys, {{values, width}}});
  }

  const std::string& name() const override { return name_; }
  std::uint64_t rows() const override { return rows_.size() / stride(); }
  Checksum checksum() const override { return checksum_; }
  std::size_t memory_bytes() const override { return rows_.size() + slots_.size() * sizeof slots_[0]; }

  // In three passes over small groups, so that the misses of a group overlap: slot, row, value.
  void lookup(std::span<const std::uint64_t> keys, std::span<Value> out) const override {
    constexpr std::size_t kGroup = 16;
    std::size_t slots[kGroup];
    for (std::size_t start = 0; start < keys.size(); start += kGroup) {
      const std::size_t count = std::min(kGroup, keys.size() - start);
      for (std::size_t i = 0; i < count; ++i) {
        slots[i] = hash(keys[start + i]) & mask_;
        __builtin_prefetch(&slots_[slots[i]]);
      }
      for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t row = slots_[slots[i]];
        if (row == 0) continue;
        __builtin_prefetch(rows_.data() + (row - 1) * stride());
        __builtin_prefetch(rows_.data() + row * stride() - 1);
      }
      for (std::size_t i = 0; i < count; ++i) {
        Value& value = out[start + i];
        value = {nullptr, 0, false};
        for (std::size_t slot = slots[i]; slots_[slot] != 0; slot = (slot + 1) & mask_) {
          const std::size_t row = slots_[slot] - 1;
          if (key_at(row) != keys[start + i]) continue;
          value = {rows_.data() + row * stride() + sizeof(std::uint64_t), static_cast<std::uint32_t>(width_), true};
          break;
        }
      }
    }
  }

 private:
  static std::uint64_t hash(std::uint64_t key) {
    key *= 0x9e3779b97f4a7c15;
    return key ^ key >> 32;
  }
  std::size_t stride() const { return sizeof(std::uint64_t) + width_; }
  std::uint64_t key_at(std::size_t row) const {
    std::uint64_t key;
    std::memcpy(&key, rows_.data() + row * stride(), sizeof key);
    return key;
  }

  std::string name_;
  std::size_t width_;
  std::size_t mask_;
  std::vector<std::uint32_t> slots_;  // row number + 1; 0 is free
  std::vector<std::uint8_t> rows_;    // key, value
  Checksum checksum_;
};

}  // namespace cloudedge::cube
