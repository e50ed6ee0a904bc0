#include "seek.hpp"

#include <algorithm>
#include <utility>

#include "json.hpp"

namespace cloudedge::cube {
namespace {

// Keys looked up before their values are written: few enough that the results stay in the first-level cache, enough
// that the memory accesses of one lookup overlap.
constexpr std::size_t kChunk = 256;

constexpr std::size_t kKeep = 1024 * 1024;      // memory of one request that is kept for the next
constexpr std::size_t kUnpackFreely = kKeep;    // bytes that a body may unpack to however short it is...
constexpr std::size_t kUnpackTimes = 100;       // ...and beyond that, times its length

// As in brpc, the media type up to a semicolon decides; everything else is JSON.
bool says_protobuf(std::string_view content_type) {
  const std::string_view type = content_type.substr(0, content_type.find(';'));
  return type == "application/proto" || type == "application/x-protobuf";
}

}  // namespace

Failure Seeker::frame(wire::Bytes payload, const wire::Meta& meta, Buffer& out) {
  return count(answer_frame(payload, meta, out));
}

Failure Seeker::http(const http::Request& request, Buffer& body) { return count(answer_http(request, body)); }

Failure Seeker::count(Failure failure) {
  version_.reset();
  if (unpacked_.capacity() > kKeep) unpacked_.release();
  if (pin_.capacity() > kKeep) std::string().swap(pin_);
  request_.keys.trim(kKeep / sizeof(std::uint64_t));
  counters_.add(kRequests, 1);
  if (failure) counters_.add(kErrors, 1);
  return failure;
}

Failure Seeker::answer_frame(wire::Bytes payload, const wire::Meta& meta, Buffer& out) {
  if (meta.compress_type != 0) {
    if (meta.compress_type != 2 && meta.compress_type != 3) {
      return {wire::kBadRequest, "compress_type " + std::to_string(meta.compress_type) + " is not spoken here"};
    }
    if (Failure failure = unpack(payload, meta.compress_type == 2 ? Packing::gzip : Packing::zlib)) return failure;
  }
  if (Failure failure = parse(payload)) return failure;
  if (Failure failure = find_version()) return failure;
  wire::ResponseWriter writer(out);
  writer.begin(meta.correlation_id);
  if (Failure failure = look_up(writer, out)) {
    writer.discard();
    return failure;
  }
  if (request_.version_required) writer.version(version_->name());
  writer.end();
  return {};
}

Failure Seeker::answer_http(const http::Request& request, Buffer& body) {
  wire::Bytes content = request.body;
  if (request.content_encoding == "gzip") {
    if (Failure failure = unpack(content, Packing::gzip)) return failure;
  } else if (!request.content_encoding.empty() && request.content_encoding != "identity") {
    return {wire::kBadRequest, "the only content encoding here is gzip"};
  }
  if (says_protobuf(request.content_type)) {
    if (Failure failure = parse(content)) return failure;
    if (Failure failure = find_version()) return failure;
    wire::ResponseWriter writer(body);
    if (Failure failure = look_up(writer, body)) return failure;
    if (request_.version_required) writer.version(version_->name());
    return {};
  }
  std::string error;
  const std::string_view text(reinterpret_cast<const char*>(content.data()), content.size());
  // An empty body requests no keys, and so does GET.
  if (json::parse_seek(text.empty() ? "{}" : text, limits_.max_keys, request_, pin_, error) != wire::Parsed::ok) {
    return {wire::kBadRequest, error};
  }
  if (Failure failure = find_version()) return failure;
  json::ResponseWriter writer(body);
  if (Failure failure = look_up(writer, body)) return failure;
  writer.end(request_.version_required ? &version_->name() : nullptr);
  return {};
}

Failure Seeker::unpack(wire::Bytes& body, Packing packing) {
  unpacked_.clear();
  const std::size_t most = std::min(limits_.max_request(), std::max(kUnpackFreely, body.size() * kUnpackTimes));
  if (!inflate(packing, body, most, unpacked_)) {
    return {wire::kBadRequest, "the body does not unpack, or to more than " + std::to_string(most) + " bytes"};
  }
  body = unpacked_.bytes();
  return {};
}

Failure Seeker::parse(wire::Bytes payload) {
  switch (wire::parse_request(payload, limits_.max_keys, request_)) {
    case wire::Parsed::ok: return {};
    case wire::Parsed::malformed: return {wire::kBadRequest, "Fail to parse request message"};
    case wire::Parsed::pin_too_long:
      return {wire::kBadRequest, "the pin is longer than " + std::to_string(wire::kMaxPin) + " bytes"};
    case wire::Parsed::too_many_keys: break;
  }
  return {wire::kBadRequest, "more than " + std::to_string(limits_.max_keys) + " keys in one request"};
}

Failure Seeker::find_version() {
  version_ = versions_.active();
  if (request_.pin && (version_ == nullptr || version_->name() != *request_.pin)) {
    const std::string name(*request_.pin);
    version_ = versions_.find(name);
    if (version_ == nullptr) return {wire::kUnknownVersion, "version " + json::quoted(name) + " is not loaded here"};
  }
  // Not an empty answer, which would mean "no such key", but a code that sends clients to another replica.
  if (version_ == nullptr) return {wire::kStopping, "no version is active on this server"};
  return {};
}

template <class Writer>
Failure Seeker::look_up(Writer& writer, const Buffer& out) {
  const std::span<const std::uint64_t> keys = request_.keys.all();
  const std::size_t start = out.size();
  wire::Tally tally;
  values_.resize(kChunk);
  for (std::size_t at = 0; at < keys.size(); at += kChunk) {
    const std::size_t count = std::min(kChunk, keys.size() - at);
    const std::span<Value> values(values_.data(), count);
    version_->lookup(keys.subspan(at, count), values);
    writer.values(values, tally);
    if (out.size() - start > limits_.max_body) {
      return {wire::kBadRequest, "the answer would be larger than " + std::to_string(limits_.max_body) +
                                     " bytes; ask for fewer keys at once"};
    }
  }
  counters_.add(kKeys, keys.size());
  if (tally.missing > 0) counters_.add(kMissing, tally.missing);
  if (tally.too_long > 0) counters_.add(kTooLong, tally.too_long);
  return {};
}

}  // namespace cloudedge::cube
