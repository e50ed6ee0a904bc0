// The JSON of cube's HTTP interface. Integers never become doubles, so that keys up to 2^64 - 1 survive; nesting is
// bounded; a text that is not JSON is refused with the position of the error.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "buffer.hpp"
#include "version.hpp"
#include "wire.hpp"

namespace cloudedge::cube::json {

// {"keys": [1, "2"], "version_required": true, "version": "100"}; unknown members are skipped. The pin points into
// `pin_storage`. On anything but `ok`, `error` has the reason.
wire::Parsed parse_seek(std::string_view body, std::size_t max_keys, wire::SeekRequest& request,
                        std::string& pin_storage, std::string& error);

// The string members of an object; members of other types are skipped. False when it is not a JSON object.
bool parse_strings(std::string_view body, std::map<std::string, std::string>& members);

void write_string(Buffer& out, std::string_view text);
std::string quoted(std::string_view text);
void write_base64(Buffer& out, std::span<const std::uint8_t> bytes);

// {"values":[{"status":0,"value":"base64"}],"version":"100"}, in the order begin, values (any number of times), end.
class ResponseWriter {
 public:
  explicit ResponseWriter(Buffer& out) : out_(out) {}
  void values(std::span<const Value> values, wire::Tally& tally);
  void end(const std::string* version);

 private:
  Buffer& out_;
  bool any_ = false;
};

}  // namespace cloudedge::cube::json
