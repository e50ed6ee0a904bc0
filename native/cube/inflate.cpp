#include "inflate.hpp"

#include <array>

namespace cloudedge::cube {
namespace {

using Bytes = std::span<const std::uint8_t>;

class Bits {
 public:
  explicit Bits(Bytes input) : input_(input) {}

  // The next `count` (at most 16) bits; false when the input ends before.
  bool take(unsigned count, std::uint32_t& value) {
    while (held_ < count) {
      if (at_ == input_.size()) return false;
      window_ |= std::uint64_t{input_[at_++]} << held_;
      held_ += 8;
    }
    value = static_cast<std::uint32_t>(window_ & ((std::uint64_t{1} << count) - 1));
    window_ >>= count;
    held_ -= count;
    return true;
  }

  void align() {
    window_ >>= held_ % 8;
    held_ -= held_ % 8;
  }

  // The position in whole bytes after align(): bits held so far are part of it.
  std::size_t byte_position() const { return at_ - held_ / 8; }
  void jump(std::size_t position) {
    at_ = position;
    window_ = 0;
    held_ = 0;
  }

 private:
  Bytes input_;
  std::size_t at_ = 0;
  std::uint64_t window_ = 0;
  unsigned held_ = 0;
};

// A canonical Huffman code, decoded bit by bit with the number of codes of each length.
class Huffman {
 public:
  bool build(std::span<const std::uint8_t> lengths) {
    counts_.fill(0);
    for (const std::uint8_t length : lengths) ++counts_[length];
    counts_[0] = 0;
    int left = 1;
    for (std::size_t length = 1; length < counts_.size(); ++length) {
      left = left * 2 - counts_[length];
      if (left < 0) return false;  // more codes than this many bits can represent
    }
    std::array<std::uint16_t, 16> offsets{};
    for (std::size_t length = 1; length + 1 < counts_.size(); ++length) {
      offsets[length + 1] = static_cast<std::uint16_t>(offsets[length] + counts_[length]);
    }
    for (std::size_t symbol = 0; symbol < lengths.size(); ++symbol) {
      if (lengths[symbol] != 0) symbols_[offsets[lengths[symbol]]++] = static_cast<std::uint16_t>(symbol);
    }
    return true;
  }

  bool decode(Bits& bits, std::uint32_t& symbol) const {
    std::uint32_t code = 0;
    std::uint32_t first = 0;
    std::uint32_t index = 0;
    for (std::size_t length = 1; length < counts_.size(); ++length) {
      std::uint32_t bit;
      if (!bits.take(1, bit)) return false;
      code |= bit;
      const std::uint32_t count = counts_[length];
      if (code < first + count) {
        symbol = symbols_[index + code - first];
        return true;
      }
      index += count;
      first = (first + count) << 1;
      code <<= 1;
    }
    return false;
  }

 private:
  std::array<std::uint16_t, 16> counts_{};
  std::array<std::uint16_t, 288> symbols_{};
};

struct Extended {
  std::uint16_t base;
  std::uint8_t extra_bits;
};

constexpr Extended kLengths[29] = {{3, 0},  {4, 0},  {5, 0},  {6, 0},  {7, 0},  {8, 0},   {9, 0},   {10, 0},
                                   {11, 1}, {13, 1}, {15, 1}, {17, 1}, {19, 2}, {23, 2},  {27, 2},  {31, 2},
                                   {35, 3}, {43, 3}, {51, 3}, {59, 3}, {67, 4}, {83, 4},  {99, 4},  {115, 4},
                                   {131, 5}, {163, 5}, {195, 5}, {227, 5}, {258, 0}};
constexpr Extended kDistances[30] = {{1, 0},     {2, 0},     {3, 0},     {4, 0},     {5, 1},     {7, 1},
                                     {9, 2},     {13, 2},    {17, 3},    {25, 3},    {33, 4},    {49, 4},
                                     {65, 5},    {97, 5},    {129, 6},   {193, 6},   {257, 7},   {385, 7},
                                     {513, 8},   {769, 8},   {1025, 9},  {1537, 9},  {2049, 10}, {3073, 10},
                                     {4097, 11}, {6145, 11}, {8193, 12}, {12289, 12}, {16385, 13}, {24577, 13}};

class Inflater {
 public:
  Inflater(Bytes input, std::size_t max_size, Buffer& out)
      : input_(input), bits_(input), max_size_(max_size), out_(out), start_(out.size()) {}

  // Decodes all blocks; `position` then is the first byte after them.
  bool run(std::size_t& position) {
    std::uint32_t last = 0;
    while (last == 0) {
      std::uint32_t type;
      if (!bits_.take(1, last) || !bits_.take(2, type)) return false;
      const bool good = type == 0 ? stored() : type == 1 ? fixed() : type == 2 ? dynamic() : false;
      if (!good) return false;
    }
    bits_.align();
    position = bits_.byte_position();
    return true;
  }

 private:
  std::size_t written() const { return out_.size() - start_; }

  bool stored() {
    bits_.align();
    const std::size_t at = bits_.byte_position();
    if (input_.size() - at < 4) return false;
    const std::size_t size = input_[at] | std::size_t{input_[at + 1]} << 8;
    const std::size_t check = input_[at + 2] | std::size_t{input_[at + 3]} << 8;
    if (size != (check ^ 0xffff) || input_.size() - at - 4 < size || max_size_ - written() < size) return false;
    out_.append(input_.data() + at + 4, size);
    bits_.jump(at + 4 + size);
    return true;
  }

  bool fixed() {
    std::array<std::uint8_t, 288> lengths;
    for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
    std::array<std::uint8_t, 30> distances;
    distances.fill(5);
    return literals_.build(lengths) && distances_.build(distances) && compressed();
  }

  bool dynamic() {
    std::uint32_t literal_count;
    std::uint32_t distance_count;
    std::uint32_t code_count;
    if (!bits_.take(5, literal_count) || !bits_.take(5, distance_count) || !bits_.take(4, code_count)) return false;
    literal_count += 257;
    distance_count += 1;
    if (literal_count > 286 || distance_count > 30) return false;
    constexpr std::uint8_t kOrder[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    std::array<std::uint8_t, 19> code_lengths{};
    for (std::uint32_t i = 0; i < code_count + 4; ++i) {
      std::uint32_t length;
      if (!bits_.take(3, length)) return false;
      code_lengths[kOrder[i]] = static_cast<std::uint8_t>(length);
    }
    Huffman codes;
    if (!codes.build(code_lengths)) return false;
    std::array<std::uint8_t, 286 + 30> lengths{};
    for (std::uint32_t i = 0; i < literal_count + distance_count;) {
      std::uint32_t symbol;
      if (!codes.decode(bits_, symbol)) return false;
      if (symbol < 16) {
        lengths[i++] = static_cast<std::uint8_t>(symbol);
        continue;
      }
      if (symbol == 16 && i == 0) return false;
      std::uint32_t repeat;
      if (!bits_.take(symbol == 16 ? 2 : symbol == 17 ? 3 : 7, repeat)) return false;
      repeat += symbol == 18 ? 11 : 3;
      if (repeat > literal_count + distance_count - i) return false;
      const std::uint8_t value = symbol == 16 ? lengths[i - 1] : 0;
      while (repeat-- > 0) lengths[i++] = value;
    }
    const std::span<const std::uint8_t> all(lengths);
    return literals_.build(all.first(literal_count)) &&
           distances_.build(all.subspan(literal_count, distance_count)) && compressed();
  }

  bool compressed() {
    while (true) {
      std::uint32_t symbol;
      if (!literals_.decode(bits_, symbol)) return false;
      if (symbol == 256) return true;
      if (symbol < 256) {
        if (written() == max_size_) return false;
        out_.push(static_cast<std::uint8_t>(symbol));
        continue;
      }
      std::uint32_t extra;
      if (symbol > 285 || !bits_.take(kLengths[symbol - 257].extra_bits, extra)) return false;
      const std::size_t length = kLengths[symbol - 257].base + extra;
      if (!distances_.decode(bits_, symbol) || symbol > 29) return false;
      if (!bits_.take(kDistances[symbol].extra_bits, extra)) return false;
      const std::size_t distance = kDistances[symbol].base + extra;
      if (distance > written() || length > max_size_ - written()) return false;
      std::uint8_t* const to = out_.prepare(length);
      const std::uint8_t* const from = to - distance;  // may overlap the bytes being written
      for (std::size_t i = 0; i < length; ++i) to[i] = from[i];
      out_.commit(length);
    }
  }

  Bytes input_;
  Bits bits_;
  std::size_t max_size_;
  Buffer& out_;
  std::size_t start_;
  Huffman literals_;
  Huffman distances_;
};

std::uint32_t crc32(Bytes bytes) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> made;
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xedb88320 : 0);
      made[i] = value;
    }
    return made;
  }();
  std::uint32_t crc = 0xffffffff;
  for (const std::uint8_t byte : bytes) crc = crc >> 8 ^ table[(crc ^ byte) & 0xff];
  return ~crc;
}

std::uint32_t adler32(Bytes bytes) {
  std::uint32_t low = 1;
  std::uint32_t high = 0;
  for (const std::uint8_t byte : bytes) {
    low = (low + byte) % 65521;
    high = (high + low) % 65521;
  }
  return high << 16 | low;
}

std::uint32_t load32(const std::uint8_t* at, bool big) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= std::uint32_t{at[i]} << 8 * (big ? 3 - i : i);
  return value;
}

// The size of the gzip header at the front, or 0 if there is none.
std::size_t gzip_header(Bytes input) {
  if (input.size() < 10 || input[0] != 0x1f || input[1] != 0x8b || input[2] != 8 || (input[3] & 0xe0) != 0) return 0;
  const std::uint8_t flags = input[3];
  std::size_t at = 10;
  if (flags & 4) {  // extra field
    if (input.size() - at < 2) return 0;
    const std::size_t size = input[at] | std::size_t{input[at + 1]} << 8;
    if (input.size() - at - 2 < size) return 0;
    at += 2 + size;
  }
  for (const std::uint8_t name : {8, 16}) {  // file name, comment
    if ((flags & name) == 0) continue;
    while (at < input.size() && input[at] != 0) ++at;
    if (at++ == input.size()) return 0;
  }
  if (flags & 2) at += 2;  // checksum of the header
  return at <= input.size() ? at : 0;
}

}  // namespace

bool inflate(Packing packing, Bytes input, std::size_t max_size, Buffer& out) {
  const bool gzip = packing == Packing::gzip;
  std::size_t header = 2;
  if (gzip) {
    header = gzip_header(input);
    if (header == 0) return false;
  } else if (input.size() < 2 || (input[0] & 0x0f) != 8 || (input[1] & 0x20) != 0 ||
             (input[0] * 256 + input[1]) % 31 != 0) {
    return false;
  }
  const Bytes packed = input.subspan(header);
  const std::size_t start = out.size();
  std::size_t end;
  if (!Inflater(packed, max_size, out).run(end)) return false;
  if (packed.size() - end != (gzip ? 8u : 4u)) return false;
  const Bytes unpacked = out.bytes().subspan(start);
  const std::uint8_t* const trailer = packed.data() + end;
  if (!gzip) return load32(trailer, true) == adler32(unpacked);
  return load32(trailer, false) == crc32(unpacked) &&
         load32(trailer + 4, false) == static_cast<std::uint32_t>(unpacked.size());
}

}  // namespace cloudedge::cube
