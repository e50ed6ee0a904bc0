// Histograms of durations, for percentiles.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace cloudedge::cube {

// Durations in buckets of 1/64 of their own size: percentiles within 1.6 %, whatever the range.
class Histogram {
 public:
  void add(std::int64_t ns) {
    const auto value = static_cast<std::uint64_t>(std::max<std::int64_t>(ns, 1));
    ++buckets_[index(value)];
    ++count_;
    max_ = std::max(max_, value);
  }
  double percentile_us(double share) const {
    const auto rank = static_cast<std::uint64_t>(share * static_cast<double>(count_));
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      seen += buckets_[i];
      if (seen > rank) return static_cast<double>(lower_bound(i)) / 1e3;
    }
    return max_us();
  }
  void add(const Histogram& other) {
    for (std::size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
    count_ += other.count_;
    max_ = std::max(max_, other.max_);
  }
  double max_us() const { return static_cast<double>(max_) / 1e3; }

 private:
  static constexpr unsigned kBits = 6;
  static std::size_t index(std::uint64_t value) {
    const unsigned width = static_cast<unsigned>(std::bit_width(value));
    if (width <= kBits + 1) return value;
    const unsigned shift = width - kBits - 1;
    return (static_cast<std::size_t>(shift) << kBits) + (value >> shift);
  }
  static std::uint64_t lower_bound(std::size_t index) {
    if (index < 2u << kBits) return index;
    const std::size_t shift = (index >> kBits) - 1;
    return ((index & ((1u << kBits) - 1)) + (1u << kBits)) << shift;
  }

  std::array<std::uint64_t, (64 - kBits + 1) << kBits> buckets_{};
  std::uint64_t count_ = 0;
  std::uint64_t max_ = 0;
};

}  // namespace cloudedge::cube
