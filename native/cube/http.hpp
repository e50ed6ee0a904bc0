// The part of HTTP/1.x that cube needs: parses requests from a buffer that may hold half a request or several, and
// writes responses in one piece. Sizes are bounded, ambiguous lengths are refused. Knows nothing of the handlers of a
// path.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "buffer.hpp"

namespace cloudedge::cube::http {

struct Limits {
  std::size_t header = 16 * 1024;
  std::size_t body = 64 * 1024 * 1024;
};

struct Request {
  std::string_view method;  // the views point into the parsed bytes
  std::string_view path;    // without the query
  std::string_view content_type;
  std::string_view content_encoding;
  bool keep_alive = true;
  bool version_1_0 = false;
  std::span<const std::uint8_t> body;  // of a chunked request: in the storage passed to parse()
};

// The parser's position in a half-received message, so that small pieces are not scanned again and again. Starts as {}
// with each message.
struct Progress {
  std::size_t scanned = 0;
  bool continued = false;  // "100 Continue" was sent
};

struct Parse {
  enum class Status { incomplete, complete, refused } status;
  std::size_t size = 0;     // complete: the message's size; incomplete: its least possible size
  int code = 0;             // refused: the HTTP status to answer with before closing
  const char* reason = "";  // refused: the body of the answer
  bool send_continue = false;
};

Parse parse(std::span<const std::uint8_t> input, const Limits& limits, Progress& progress, Request& request,
            Buffer& chunked_body);

struct Response {
  int status = 200;
  std::string_view content_type = "text/plain";
  int error_code = 0;  // RPC error, sent as x-bd-error-code when not 0
  std::string_view body = {};
};

void write_response(Buffer& out, const Request& request, const Response& response);

}  // namespace cloudedge::cube::http
