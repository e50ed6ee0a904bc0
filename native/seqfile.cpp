#include "seqfile.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

namespace cloudedge::seqfile {
namespace {

constexpr std::string_view kClass = "org.apache.hadoop.io.BytesWritable";
constexpr std::size_t kNameField = 1 + kClass.size();
constexpr std::size_t kHeader = 4 + 2 * kNameField + 2 + 4 + 16;
constexpr std::uint32_t kEscape = 0xffffffff;
constexpr std::uint32_t kKeyBytes = 8;
constexpr std::size_t kHead = 8;          // record length and key length
constexpr std::uint64_t kSyncEvery = 2000;  // payload bytes: keys and values, not the heads

static_assert(std::endian::native == std::endian::little, "keys are used as they lie in the file");
static_assert(kHeader == 96);

std::uint32_t big_endian(const std::uint8_t* at) {
  return std::uint32_t{at[0]} << 24 | std::uint32_t{at[1]} << 16 | std::uint32_t{at[2]} << 8 | at[3];
}

void put_big_endian(std::uint8_t* at, std::uint32_t value) {
  for (int i = 0; i < 4; ++i) at[i] = static_cast<std::uint8_t>(value >> (24 - 8 * i));
}

std::uint64_t little_endian_64(const std::uint8_t* at) {
  std::uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

}  // namespace

Reader::Reader(std::string path, Damage damage) : stream_(std::move(path)), damage_(damage) { read_header(); }

void Reader::read_header() {
  const std::string& path = stream_.path();
  if (stream_.size() < kHeader) {
    throw_damaged(path, stream_.size(), "the file ends inside the 96-byte SequenceFile header");
  }
  const std::uint8_t* header = stream_.peek(kHeader);
  const auto expect = [&](std::size_t offset, std::string_view bytes, const char* what) {
    if (std::memcmp(header + offset, bytes.data(), bytes.size()) != 0) throw_damaged(path, offset, what);
  };
  expect(0, "SEQ", "not a SequenceFile: it does not begin with SEQ");
  expect(3, "\x06", "SequenceFile version other than 6");
  const std::string name = std::string(1, static_cast<char>(kClass.size())) + std::string(kClass);
  expect(4, name, "key class other than org.apache.hadoop.io.BytesWritable");
  expect(4 + kNameField, name, "value class other than org.apache.hadoop.io.BytesWritable");
  const std::size_t flags = 4 + 2 * kNameField;
  expect(flags, std::string_view("\0", 1), "the values are compressed, which cube files never are");
  expect(flags + 1, std::string_view("\0", 1), "the blocks are compressed, which cube files never are");
  expect(flags + 2, std::string_view("\0\0\0\0", 4), "the header carries metadata pairs, which cube files never do");
  std::memcpy(sync_.data(), header + flags + 6, sync_.size());
  stream_.skip(kHeader);
}

bool Reader::next(Record& record) {
  for (;;) {
    const std::uint64_t start = stream_.offset();
    const std::uint64_t left = stream_.left();
    if (left == 0) return false;
    if (left < 4) {
      fault(start, "the file ends inside a record length");
      continue;
    }
    const std::uint32_t length = big_endian(stream_.peek(4));
    if (length == kEscape) {
      if (left < 4 + sync_.size()) {
        fault(start, "the file ends inside a sync mark");
      } else if (std::memcmp(stream_.peek(4 + sync_.size()) + 4, sync_.data(), sync_.size()) != 0) {
        fault(start, "the sync mark differs from the one in the header");
      } else {
        stream_.skip(4 + sync_.size());
      }
      continue;
    }
    if (length < kKeyBytes || length > kKeyBytes + kMaxValue) {
      fault(start, "record length " + std::to_string(length) + " is not within 8 and 67108868");
      continue;
    }
    if (left < kHead + length) {
      fault(start, "the file ends inside a record of " + std::to_string(length) + " bytes");
      continue;
    }
    const std::uint8_t* at = stream_.peek(kHead + length);
    const std::uint32_t key_length = big_endian(at + 4);
    if (key_length != kKeyBytes) {
      fault(start, "key length " + std::to_string(key_length) +
                       " instead of 8; files made by Hadoop itself carry an inner length and do not fit");
      continue;
    }
    record = {little_endian_64(at + kHead), at + kHead + kKeyBytes, length - kKeyBytes, start};
    stream_.skip(kHead + length);
    return true;
  }
}

// Throws, or moves on to just after the next sync mark (to the end of the file if there is none).
void Reader::fault(std::uint64_t offset, const std::string& what) {
  if (damage_ == Damage::kRefuse) throw_damaged(stream_.path(), offset, what);
  std::array<std::uint8_t, 4 + std::tuple_size_v<Sync>> mark;
  put_big_endian(mark.data(), kEscape);
  std::copy(sync_.begin(), sync_.end(), mark.begin() + 4);
  // The fault itself cannot begin a whole mark, so the search starts one byte later.
  stream_.seek(offset + 1);
  std::uint64_t resume = stream_.size();
  while (stream_.left() >= mark.size()) {
    const std::size_t window = std::min<std::uint64_t>(stream_.left(), ByteStream::kDefaultBuffer);
    const std::uint8_t* from = stream_.peek(window);
    const std::uint8_t* found = std::search(from, from + window, mark.begin(), mark.end());
    if (found != from + window) {
      resume = stream_.offset() + static_cast<std::uint64_t>(found - from) + mark.size();
      break;
    }
    stream_.skip(window - mark.size() + 1);
  }
  stream_.seek(resume);
  skipped_bytes_ += resume - offset;
  ++skipped_places_;
}

TableRows read_table(const std::string& path, Damage damage) {
  Reader reader(path, damage);
  TableRows table;
  Record record;
  for (; reader.next(record); ++table.rows) {
    if (table.rows == 0) {
      // Room for as many records as the file can hold; pages that are not written cost nothing.
      table.width = record.size;
      const std::uint64_t most = reader.size() / (kHead + kKeyBytes + table.width);
      table.keys = Pages::zeroed(most * kKeyBytes);
      table.values = Pages::zeroed(most * table.width);
    }
    if (record.size != table.width) {
      throw_refused(path, record.offset, "key " + std::to_string(record.key) + " has a value of " +
                                             std::to_string(record.size) + " bytes, those before it have " +
                                             std::to_string(table.width));
    }
    std::memcpy(table.keys.data() + table.rows * kKeyBytes, &record.key, kKeyBytes);
    if (table.width > 0) std::memcpy(table.values.data() + table.rows * table.width, record.value, table.width);
  }
  table.keys.shrink(table.rows * kKeyBytes);
  table.values.shrink(table.rows * table.width);
  table.skipped_bytes = reader.skipped_bytes();
  return table;
}

Writer::Writer(std::string path, const Sync& sync) : file_(std::move(path)), sync_(sync) {
  std::array<std::uint8_t, kHeader> header{'S', 'E', 'Q', 6};
  std::size_t at = 4;
  for (int i = 0; i < 2; ++i) {
    header[at] = static_cast<std::uint8_t>(kClass.size());
    std::copy(kClass.begin(), kClass.end(), header.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    at += kNameField;
  }
  std::copy(sync.begin(), sync.end(), header.end() - static_cast<std::ptrdiff_t>(sync.size()));
  file_.append(header.data(), header.size());
}

void Writer::append(std::uint64_t key, const std::uint8_t* value, std::uint32_t size) {
  std::uint8_t head[kHead + kKeyBytes];
  put_big_endian(head, kKeyBytes + size);
  put_big_endian(head + 4, kKeyBytes);
  std::memcpy(head + kHead, &key, kKeyBytes);
  file_.append(head, sizeof head);
  file_.append(value, size);
  since_sync_ += kKeyBytes + size;
  if (since_sync_ < kSyncEvery) return;
  std::uint8_t escape[4];
  put_big_endian(escape, kEscape);
  file_.append(escape, sizeof escape);
  file_.append(sync_.data(), sync_.size());
  since_sync_ = 0;
}

}  // namespace cloudedge::seqfile
