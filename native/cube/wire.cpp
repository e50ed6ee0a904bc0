#include "wire.hpp"

#include <algorithm>
#include <cstring>

#include "protobuf.hpp"

namespace cloudedge::cube::wire {
namespace {

using protobuf::Reader;
using protobuf::Wire;

constexpr std::uint8_t kMagic[4] = {'P', 'R', 'P', 'C'};
constexpr std::size_t kMaxMeta = 32;  // of an answer without error text and attachment

std::string_view text(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

std::uint32_t load_big(const std::uint8_t* at) {
  return std::uint32_t{at[0]} << 24 | std::uint32_t{at[1]} << 16 | std::uint32_t{at[2]} << 8 | at[3];
}

void store_big(std::uint8_t* at, std::size_t value) {
  for (int i = 3; i >= 0; --i, value >>= 8) at[i] = static_cast<std::uint8_t>(value);
}

bool parse_request_meta(Bytes input, Meta& meta) {
  Reader reader(input);
  std::uint32_t number;
  Wire wire;
  Bytes bytes;
  while (!reader.done()) {
    if (!reader.field(number, wire)) return false;
    if (number <= 2 && wire == Wire::bytes) {
      if (!reader.bytes(bytes)) return false;
      (number == 1 ? meta.service : meta.method) = text(bytes);
    } else if (!reader.skip(wire)) {
      return false;
    }
  }
  return true;
}

bool parse_response_meta(Bytes input, Meta& meta) {
  Reader reader(input);
  std::uint32_t number;
  Wire wire;
  Bytes bytes;
  std::uint64_t value;
  while (!reader.done()) {
    if (!reader.field(number, wire)) return false;
    if (number == 1 && wire == Wire::varint) {
      if (!reader.varint(value)) return false;
      meta.error_code = static_cast<std::int32_t>(value);
    } else if (number == 2 && wire == Wire::bytes) {
      if (!reader.bytes(bytes)) return false;
      meta.error_text = text(bytes);
    } else if (!reader.skip(wire)) {
      return false;
    }
  }
  return true;
}

// Copies inline: rows are short, and memcpy of an unknown size costs more than the copy.
inline std::uint8_t* copy(std::uint8_t* to, const std::uint8_t* from, std::size_t size) {
  if (size >= 16) {
    std::size_t i = 0;
    do {
      std::memcpy(to + i, from + i, 16);
      i += 16;
    } while (i + 16 <= size);
    std::memcpy(to + size - 16, from + size - 16, 16);  // the tail, overlapping bytes already copied
  } else if (size >= 4) {
    const std::size_t last = size - 4;
    const std::size_t middle = last < 4 ? last : 4;
    const std::size_t third = last < 8 ? last : 8;
    std::memcpy(to, from, 4);
    std::memcpy(to + middle, from + middle, 4);
    std::memcpy(to + third, from + third, 4);
    std::memcpy(to + last, from + last, 4);
  } else {
    for (std::size_t i = 0; i < size; ++i) to[i] = from[i];
  }
  return to + size;
}

// RpcMeta of an answer: response { error_code, error_text? }, compress_type 0, correlation_id, attachment_size?
std::uint8_t* write_response_meta(std::uint8_t* at, std::uint64_t correlation_id, std::int32_t code,
                                  std::string_view text, std::size_t attachment) {
  const auto wide = static_cast<std::uint64_t>(static_cast<std::int64_t>(code));
  std::size_t size = 1 + protobuf::varint_size(wide);
  if (code != 0) size += 1 + protobuf::varint_size(text.size()) + text.size();
  *at++ = 0x12;
  at = protobuf::write_varint(at, size);
  *at++ = 0x08;
  at = protobuf::write_varint(at, wide);
  if (code != 0) {
    *at++ = 0x12;
    at = protobuf::write_bytes(at, text.data(), text.size());
  }
  *at++ = 0x18;
  *at++ = 0;
  *at++ = 0x20;
  at = protobuf::write_varint(at, correlation_id);
  if (attachment > 0) {
    *at++ = 0x28;
    at = protobuf::write_varint(at, attachment);
  }
  return at;
}

}  // namespace

Head parse_header(Bytes input, std::size_t max_body, Header& header) {
  if (input.empty()) return Head::incomplete;
  const std::size_t seen = std::min<std::size_t>(input.size(), sizeof kMagic);
  if (std::memcmp(input.data(), kMagic, seen) != 0) return Head::foreign;
  if (input.size() < kHeaderSize) return Head::incomplete;
  header = {load_big(input.data() + 4), load_big(input.data() + 8)};
  return header.body > max_body || header.meta > header.body ? Head::broken : Head::frame;
}

bool parse_meta(Bytes input, Meta& meta) {
  Reader reader(input);
  std::uint32_t number;
  Wire wire;
  Bytes bytes;
  std::uint64_t value;
  while (!reader.done()) {
    if (!reader.field(number, wire)) return false;
    if (number <= 2 && wire == Wire::bytes) {
      if (!reader.bytes(bytes)) return false;
      (number == 1 ? meta.is_request : meta.is_response) = true;
      if (!(number == 1 ? parse_request_meta(bytes, meta) : parse_response_meta(bytes, meta))) return false;
    } else if (number >= 3 && number <= 5 && wire == Wire::varint) {
      if (!reader.varint(value)) return false;
      if (number == 3) meta.compress_type = static_cast<std::int32_t>(value);
      if (number == 4) meta.correlation_id = value;
      if (number == 5) meta.attachment_size = static_cast<std::int32_t>(value);
    } else if (!reader.skip(wire)) {
      return false;
    }
  }
  return true;
}

Parsed parse_request(Bytes payload, std::size_t max_keys, SeekRequest& request) {
  request.keys.reset(std::min(payload.size(), max_keys));
  request.version_required = false;
  request.pin.reset();
  Reader reader(payload);
  std::uint32_t number;
  Wire wire;
  std::uint64_t value;
  Bytes bytes;
  while (true) {
    while (reader.take(0x08)) {  // keys one by one: nearly all of a request
      if (!reader.varint(value)) return Parsed::malformed;
      if (!request.keys.add(value)) return Parsed::too_many_keys;
    }
    if (reader.done()) return Parsed::ok;
    if (!reader.field(number, wire)) return Parsed::malformed;
    if (number == 1 && wire == Wire::varint) {  // the same with an overlong tag
      if (!reader.varint(value)) return Parsed::malformed;
      if (!request.keys.add(value)) return Parsed::too_many_keys;
    } else if (number == 1 && wire == Wire::bytes) {
      if (!reader.bytes(bytes)) return Parsed::malformed;
      for (Reader packed(bytes); !packed.done();) {
        if (!packed.varint(value)) return Parsed::malformed;
        if (!request.keys.add(value)) return Parsed::too_many_keys;
      }
    } else if (number == 2 && wire == Wire::varint) {
      if (!reader.varint(value)) return Parsed::malformed;
      request.version_required = value != 0;
    } else if (number == kPinField && wire == Wire::bytes) {
      if (!reader.bytes(bytes)) return Parsed::malformed;
      if (bytes.size() > kMaxPin) return Parsed::pin_too_long;
      request.pin = text(bytes);
    } else if (!reader.skip(wire)) {
      return Parsed::malformed;
    }
  }
}

void write_request(Buffer& out, std::uint64_t correlation_id, std::span<const std::uint64_t> keys,
                   const std::optional<std::string_view>& pin) {
  constexpr std::string_view kMethod = "seek";
  const std::size_t start = out.size();
  const std::size_t pin_size = pin ? pin->size() : 0;
  std::uint8_t* const first = out.prepare(128 + keys.size() * (1 + protobuf::kMaxVarint) + pin_size);
  std::uint8_t* at = first + kHeaderSize;
  *at++ = 0x0a;
  *at++ = static_cast<std::uint8_t>(2 + kDictService.size() + 2 + kMethod.size());
  *at++ = 0x0a;
  at = protobuf::write_bytes(at, kDictService.data(), kDictService.size());
  *at++ = 0x12;
  at = protobuf::write_bytes(at, kMethod.data(), kMethod.size());
  *at++ = 0x18;
  *at++ = 0;
  *at++ = 0x20;
  at = protobuf::write_varint(at, correlation_id);
  std::uint8_t* const payload = at;
  for (const std::uint64_t key : keys) {
    *at++ = 0x08;
    at = protobuf::write_varint(at, key);
  }
  *at++ = 0x10;  // version_required: always, so that mixed versions are noticed
  *at++ = 1;
  if (pin) {
    at = protobuf::write_varint(at, kPinField << 3 | 2);
    at = protobuf::write_bytes(at, pin->data(), pin->size());
  }
  out.commit(static_cast<std::size_t>(at - first));
  std::memcpy(out.data() + start, kMagic, sizeof kMagic);
  store_big(out.data() + start + 4, out.size() - start - kHeaderSize);
  store_big(out.data() + start + 8, static_cast<std::size_t>(payload - first) - kHeaderSize);
}

void ResponseWriter::begin(std::uint64_t correlation_id) {
  std::uint8_t* const at = out_.prepare(kHeaderSize + kMaxMeta);
  std::memcpy(at, kMagic, sizeof kMagic);
  std::uint8_t* const end = write_response_meta(at + kHeaderSize, correlation_id, 0, {}, 0);
  store_big(at + 8, static_cast<std::size_t>(end - at) - kHeaderSize);
  out_.commit(static_cast<std::size_t>(end - at));
}

void ResponseWriter::values(std::span<const Value> values, Tally& tally) {
  std::size_t bytes = 0;
  for (const Value& value : values) bytes += value.found ? value.size : 0;
  std::uint8_t* const first = out_.prepare(bytes + values.size() * 16);
  std::uint8_t* at = first;
  for (const Value& value : values) {
    if (!value.found) {
      ++(value.too_long() ? tally.too_long : tally.missing);
      constexpr std::uint8_t kNotFound[] = {0x0a, 0x08, 0x08, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x12, 0x00};
      std::memcpy(at, kNotFound, sizeof kNotFound);
      at += sizeof kNotFound;
    } else if (value.size < 0x80 - 4) {
      // values { status: 0, value } with both lengths in one byte each: six bytes, written as one word
      const std::uint64_t size = value.size;
      const std::uint64_t head = 0x120008000a | (size + 4) << 8 | size << 40;
      std::memcpy(at, &head, 8);
      at = copy(at + 6, value.data, value.size);
    } else {
      *at++ = 0x0a;
      at = protobuf::write_varint(at, 3 + protobuf::varint_size(value.size) + value.size);
      *at++ = 0x08;
      *at++ = 0x00;
      *at++ = 0x12;
      at = protobuf::write_varint(at, value.size);
      at = copy(at, value.data, value.size);
    }
  }
  out_.commit(static_cast<std::size_t>(at - first));
}

void ResponseWriter::version(std::string_view version) {
  std::uint8_t* const first = out_.prepare(1 + protobuf::kMaxVarint + version.size());
  *first = 0x12;
  std::uint8_t* const end = protobuf::write_bytes(first + 1, version.data(), version.size());
  out_.commit(static_cast<std::size_t>(end - first));
}

void ResponseWriter::end() { store_big(out_.data() + start_ + 4, size() - kHeaderSize); }

void write_reply(Buffer& out, std::uint64_t correlation_id, std::int32_t code, std::string_view text,
                 std::string_view attachment) {
  std::uint8_t* const first = out.prepare(kHeaderSize + kMaxMeta + 32 + text.size() + attachment.size());
  std::memcpy(first, kMagic, sizeof kMagic);
  std::uint8_t* at = write_response_meta(first + kHeaderSize, correlation_id, code, text, attachment.size());
  store_big(first + 8, static_cast<std::size_t>(at - first) - kHeaderSize);
  if (!attachment.empty()) std::memcpy(at, attachment.data(), attachment.size());
  at += attachment.size();
  store_big(first + 4, static_cast<std::size_t>(at - first) - kHeaderSize);
  out.commit(static_cast<std::size_t>(at - first));
}

bool parse_response(Bytes payload, std::span<Value> values, std::optional<std::string_view>& version) {
  Reader reader(payload);
  std::uint32_t number;
  Wire wire;
  Bytes bytes;
  std::uint64_t varint;
  std::size_t count = 0;
  version.reset();
  while (!reader.done()) {
    if (!reader.field(number, wire)) return false;
    if (number == 1 && wire == Wire::bytes) {
      if (!reader.bytes(bytes) || count == values.size()) return false;
      Reader one(bytes);
      Bytes content;
      bool has_status = false;
      bool has_value = false;
      std::uint64_t status = 0;
      while (!one.done()) {
        if (!one.field(number, wire)) return false;
        if (number == 1 && wire == Wire::varint) {
          if (!one.varint(varint)) return false;
          status = varint;
          has_status = true;
        } else if (number == 2 && wire == Wire::bytes) {
          if (!one.bytes(content)) return false;
          has_value = true;
        } else if (!one.skip(wire)) {
          return false;
        }
      }
      const auto known = static_cast<std::uint32_t>(status);
      if (!has_status || !has_value || (known != 0 && known != kMissing)) return false;
      values[count++] = {content.data(), static_cast<std::uint32_t>(content.size()), known == 0};
    } else if (number == 2 && wire == Wire::bytes) {
      if (!reader.bytes(bytes)) return false;
      version = text(bytes);
    } else if (!reader.skip(wire)) {
      return false;
    }
  }
  return count == values.size();
}

}  // namespace cloudedge::cube::wire
