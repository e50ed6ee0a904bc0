// JSON: what parses stays within its limits, and what is written parses back to itself.
#include "../../../native/cube/json.hpp"

#include <string>
#include <vector>

#include "check.hpp"

using namespace cloudedge::cube;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  constexpr std::size_t kMaxKeys = 50;
  static wire::SeekRequest request;
  std::string pin;
  std::string error;
  const wire::Parsed parsed = json::parse_seek(text, kMaxKeys, request, pin, error);
  CHECK(request.keys.size() <= kMaxKeys);
  CHECK((parsed == wire::Parsed::ok) == error.empty());
  if (parsed == wire::Parsed::ok) {
    std::string again = "{\"keys\":[";
    for (const std::uint64_t key : request.keys.all()) again += (again.back() == '[' ? "" : ",") + std::to_string(key);
    again += "]";
    if (request.pin) again += ",\"version\":" + json::quoted(*request.pin);
    again += "}";
    wire::SeekRequest second;
    std::string second_pin;
    CHECK(json::parse_seek(again, kMaxKeys, second, second_pin, error) == wire::Parsed::ok);
    CHECK(second.keys.size() == request.keys.size());
    CHECK(second.pin.has_value() == request.pin.has_value() && second_pin == (request.pin ? pin : ""));
    std::map<std::string, std::string> members;
    CHECK(json::parse_strings(text, members));
  }

  std::map<std::string, std::string> members;
  json::parse_strings(text, members);
  // Any bytes at all can be quoted and read back.
  members.clear();
  CHECK(json::parse_strings("{\"x\":" + json::quoted(text) + "}", members));
  CHECK(members.at("x") == text);

  Buffer out;
  json::ResponseWriter writer(out);
  wire::Tally tally;
  const Value values[] = {{data, static_cast<std::uint32_t>(size), true}, {nullptr, 0, false}};
  writer.values(values, tally);
  const std::string version(text.substr(0, 20));
  writer.end(&version);
  members.clear();
  CHECK(json::parse_strings({reinterpret_cast<const char*>(out.data()), out.size()}, members));
  CHECK(members.at("version") == version);
  return 0;
}
