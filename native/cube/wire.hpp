// baidu_std frames and the messages of DictService, as Paddle Serving's cube speaks them: parsed without trusting any
// length, written straight into the output buffer. Knows nothing of sockets or of the source of values.
//
// One extension: DictRequest field 1001 (string) is the pin, the version that must answer. Servers without the
// extension skip the field, so a client that uses it checks the version in the answer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "buffer.hpp"
#include "version.hpp"

namespace cloudedge::cube::wire {

using Bytes = std::span<const std::uint8_t>;

constexpr std::size_t kHeaderSize = 12;
constexpr std::uint32_t kPinField = 1001;
constexpr std::size_t kMaxPin = 256;          // bytes of a pin, and so of a version's name
constexpr std::size_t kMaxErrorText = 2048;  // bytes of an error, whatever the request has in it
constexpr std::uint32_t kMissing = 0xffffffff;  // status of a missing key: -1 as uint32
constexpr std::string_view kDictService = "rec.mcube.DictService";
constexpr std::string_view kControlService = "rec.mcube.ControlService";

// RPC error codes: brpc's, and one of our own above brpc's application range.
enum Error : std::int32_t {
  kOk = 0,
  kForbidden = 1,  // EPERM
  kNoService = 1001,
  kNoMethod = 1002,
  kBadRequest = 1003,
  kOvercrowded = 1011,
  kInternal = 2001,
  kStopping = 2003,  // clients try another replica
  kOverLimit = 2004,
  kUnknownVersion = 10404,
};

struct Header {
  std::uint32_t body;  // meta, payload and attachment
  std::uint32_t meta;
};

enum class Head { incomplete, frame, foreign, broken };

// Parses the first bytes of a message. `foreign`: not a frame; `broken`: a frame that violates the protocol.
Head parse_header(Bytes input, std::size_t max_body, Header& header);

struct Meta {
  bool is_request = false;
  bool is_response = false;
  std::string_view service;  // these point into the parsed bytes
  std::string_view method;
  std::int32_t error_code = 0;
  std::string_view error_text;
  std::int32_t compress_type = 0;
  std::uint64_t correlation_id = 0;
  std::int64_t attachment_size = 0;
};

bool parse_meta(Bytes input, Meta& meta);

// The keys of one request, in memory that is reused for the next.
class Keys {
 public:
  void reset(std::size_t capacity) {
    if (capacity > capacity_) {
      keys_ = std::make_unique_for_overwrite<std::uint64_t[]>(capacity);
      capacity_ = capacity;
    }
    limit_ = capacity;
    size_ = 0;
  }
  // Frees memory for more than `capacity` keys.
  void trim(std::size_t capacity) {
    if (capacity_ <= capacity) return;
    keys_.reset();
    capacity_ = limit_ = size_ = 0;
  }
  bool add(std::uint64_t key) {
    if (size_ == limit_) return false;
    keys_[size_++] = key;
    return true;
  }
  std::size_t size() const { return size_; }
  std::span<const std::uint64_t> all() const { return {keys_.get(), size_}; }

 private:
  std::unique_ptr<std::uint64_t[]> keys_;
  std::size_t capacity_ = 0;
  std::size_t limit_ = 0;
  std::size_t size_ = 0;
};

struct SeekRequest {
  Keys keys;
  bool version_required = false;
  std::optional<std::string_view> pin;  // points into the parsed bytes
};

enum class Parsed { ok, malformed, too_many_keys, pin_too_long };

Parsed parse_request(Bytes payload, std::size_t max_keys, SeekRequest& request);

void write_request(Buffer& out, std::uint64_t correlation_id, std::span<const std::uint64_t> keys,
                   const std::optional<std::string_view>& pin);

struct Tally {
  std::uint64_t missing = 0;
  std::uint64_t too_long = 0;
};

// Writes a seek's answer, in the order begin, values (any number of times), version, end.
class ResponseWriter {
 public:
  explicit ResponseWriter(Buffer& out) : out_(out), start_(out.size()) {}
  void begin(std::uint64_t correlation_id);  // omitted where HTTP carries the payload
  void values(std::span<const Value> values, Tally& tally);
  void version(std::string_view version);
  std::size_t size() const { return out_.size() - start_; }
  void end();
  void discard() { out_.truncate(start_); }

 private:
  Buffer& out_;
  std::size_t start_;
};

// Writes a frame with an error and no payload, or (code 0) with an empty payload and perhaps an attachment.
void write_reply(Buffer& out, std::uint64_t correlation_id, std::int32_t code, std::string_view text,
                 std::string_view attachment = {});

// Parses a seek's answer, which must have exactly values.size() values; they then point into the payload.
bool parse_response(Bytes payload, std::span<Value> values, std::optional<std::string_view>& version);

}  // namespace cloudedge::cube::wire
