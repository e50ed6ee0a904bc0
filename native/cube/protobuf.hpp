// The part of the protobuf wire format that cube's messages need: a reader that never leaves its bytes, and writers
// into memory that is known to be large enough. Not a general codec: groups are refused.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace cloudedge::cube::protobuf {

static_assert(std::endian::native == std::endian::little, "varints are read as little-endian words");

enum class Wire : std::uint32_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

constexpr std::size_t kMaxVarint = 10;

class Reader {
 public:
  explicit Reader(std::span<const std::uint8_t> bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  bool done() const { return at_ == end_; }
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }

  // Consumes the next byte if it equals `byte`: matches an expected tag without decoding it.
  bool take(std::uint8_t byte) {
    if (at_ == end_ || *at_ != byte) return false;
    ++at_;
    return true;
  }

  bool varint(std::uint64_t& value) {
    if (left() >= 8) {
      std::uint64_t word;
      std::memcpy(&word, at_, 8);
      const std::uint64_t stops = ~word & 0x8080808080808080;
      if (stops != 0) {  // ends within these eight bytes: cut off the rest, then close the gaps between septets
        const int bits = std::countr_zero(stops) + 1;
        word &= ~std::uint64_t{0} >> (64 - bits);
        word = (word & 0x007f007f007f007f) | ((word & 0x7f007f007f007f00) >> 1);
        word = (word & 0x00003fff00003fff) | ((word & 0x3fff00003fff0000) >> 2);
        value = (word & 0x000000000fffffff) | ((word & 0x0fffffff00000000) >> 4);
        at_ += bits / 8;
        return true;
      }
    }
    return slow_varint(value);
  }

  bool field(std::uint32_t& number, Wire& wire) {
    std::uint64_t tag;
    if (!varint(tag) || tag > 0xffffffff || (tag >> 3) == 0) return false;
    number = static_cast<std::uint32_t>(tag >> 3);
    wire = static_cast<Wire>(tag & 7);
    return true;
  }

  bool bytes(std::span<const std::uint8_t>& out) {
    std::uint64_t size;
    if (!varint(size) || size > left()) return false;
    out = {at_, static_cast<std::size_t>(size)};
    at_ += size;
    return true;
  }

  bool skip(Wire wire) {
    std::uint64_t ignored;
    std::span<const std::uint8_t> bytes_ignored;
    switch (wire) {
      case Wire::varint: return varint(ignored);
      case Wire::bytes: return bytes(bytes_ignored);
      case Wire::fixed64: return advance(8);
      case Wire::fixed32: return advance(4);
    }
    return false;  // a group, or no wire type at all
  }

 private:
  bool advance(std::size_t count) {
    if (left() < count) return false;
    at_ += count;
    return true;
  }

  bool slow_varint(std::uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; shift < 70 && at_ != end_; shift += 7) {
      const std::uint8_t byte = *at_++;
      if (shift == 63 && byte > 1) return false;  // more than 64 bits
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

inline std::size_t varint_size(std::uint64_t value) {
  return static_cast<std::size_t>(63 - std::countl_zero(value | 1)) / 7 + 1;
}

inline std::uint8_t* write_varint(std::uint8_t* at, std::uint64_t value) {
  while (value >= 0x80) {
    *at++ = static_cast<std::uint8_t>(value | 0x80);
    value >>= 7;
  }
  *at++ = static_cast<std::uint8_t>(value);
  return at;
}

inline std::uint8_t* write_bytes(std::uint8_t* at, const void* bytes, std::size_t size) {
  at = write_varint(at, size);
  if (size > 0) std::memcpy(at, bytes, size);
  return at + size;
}

}  // namespace cloudedge::cube::protobuf
