// baidu_std frames and DictService messages: nothing is read outside the input, and what parses survives being written
// and parsed again.
#include "../../../native/cube/wire.hpp"

#include <vector>

#include "check.hpp"

using namespace cloudedge::cube;

namespace {

void check_request(wire::Bytes payload) {
  constexpr std::size_t kMaxKeys = 100;
  static wire::SeekRequest request;
  const wire::Parsed parsed = wire::parse_request(payload, kMaxKeys, request);
  CHECK(request.keys.size() <= kMaxKeys);
  if (parsed != wire::Parsed::ok) return;
  const auto all = request.keys.all();
  const std::vector<std::uint64_t> keys(all.begin(), all.end());
  Buffer out;
  wire::write_request(out, 42, keys, request.pin);
  wire::Header header;
  CHECK(wire::parse_header(out.bytes(), 1 << 20, header) == wire::Head::frame);
  CHECK(out.size() == wire::kHeaderSize + header.body);
  wire::Meta meta;
  CHECK(wire::parse_meta(out.bytes().subspan(wire::kHeaderSize, header.meta), meta));
  CHECK(meta.is_request && meta.service == wire::kDictService && meta.correlation_id == 42);
  wire::SeekRequest again;
  CHECK(wire::parse_request(out.bytes().subspan(wire::kHeaderSize + header.meta), kMaxKeys, again) == wire::Parsed::ok);
  CHECK(std::equal(keys.begin(), keys.end(), again.keys.all().begin(), again.keys.all().end()));
  CHECK(again.version_required && again.pin == request.pin);
}

void check_response(wire::Bytes payload) {
  for (const std::size_t count : {0, 1, 2, 5}) {
    std::vector<Value> values(count);
    std::optional<std::string_view> version;
    if (!wire::parse_response(payload, values, version)) continue;
    Buffer out;
    wire::ResponseWriter writer(out);
    wire::Tally tally;
    writer.begin(7);
    writer.values(values, tally);
    if (version) writer.version(*version);
    writer.end();
    wire::Header header;
    CHECK(wire::parse_header(out.bytes(), 1 << 20, header) == wire::Head::frame);
    std::vector<Value> again(count);
    std::optional<std::string_view> version_again;
    CHECK(wire::parse_response(out.bytes().subspan(wire::kHeaderSize + header.meta), again, version_again));
    CHECK(version == version_again);
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(again[i].found == values[i].found);
      CHECK(!values[i].found || (again[i].size == values[i].size &&
                           std::equal(again[i].data, again[i].data + again[i].size, values[i].data)));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const wire::Bytes input(data, size);
  wire::Header header;
  if (wire::parse_header(input, 1 << 16, header) == wire::Head::frame &&
      input.size() >= wire::kHeaderSize + header.body) {
    wire::Meta meta;
    wire::parse_meta(input.subspan(wire::kHeaderSize, header.meta), meta);
    check_request(input.subspan(wire::kHeaderSize + header.meta, header.body - header.meta));
    check_response(input.subspan(wire::kHeaderSize + header.meta, header.body - header.meta));
  }
  check_request(input);
  check_response(input);
  return 0;
}
