// HTTP requests: what comes in pieces is understood as what comes at once.
#include "../../../native/cube/http.hpp"

#include <string>

#include "check.hpp"

using namespace cloudedge::cube;

namespace {

struct Outcome {
  http::Parse parse;
  std::string method, path, content_type, body;
  bool keep_alive;

  Outcome(const http::Parse& parse, const http::Request& request)
      : parse(parse),
        method(request.method),
        path(request.path),
        content_type(request.content_type),
        body(request.body.begin(), request.body.end()),
        keep_alive(request.keep_alive) {}
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const http::Limits limits{.header = 512, .body = 1024};
  http::Request request;
  Buffer chunked;
  http::Progress fresh;
  const Outcome whole(http::parse({data, size}, limits, fresh, request, chunked), request);
  if (whole.parse.status == http::Parse::Status::complete) {
    CHECK(whole.parse.size <= size);
    CHECK(whole.body.size() <= limits.body);
    Buffer out;
    http::write_response(out, request, {.body = "x"});
  } else if (whole.parse.status == http::Parse::Status::incomplete) {
    CHECK(whole.parse.size > size);
  }

  // The same bytes, a few more at a time; only looked at when there are as many as were said to be needed.
  http::Progress progress;
  std::size_t needed = 0;
  const std::size_t step = 1 + data[0] % 7;
  for (std::size_t have = step; have < size + step; have += step) {
    const std::size_t now = std::min(have, size);
    if (now < needed) continue;
    // A buffer of exactly that size, so that reading further is seen.
    const std::string part(reinterpret_cast<const char*>(data), now);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(part.data());
    const http::Parse parse = http::parse({bytes, part.size()}, limits, progress, request, chunked);
    if (parse.status == http::Parse::Status::incomplete) {
      CHECK(parse.size > now);
      needed = parse.size;
      continue;
    }
    const Outcome pieces(parse, request);
    if (parse.status == http::Parse::Status::complete) {
      CHECK(whole.parse.status == http::Parse::Status::complete);
      CHECK(pieces.parse.size == whole.parse.size && pieces.body == whole.body && pieces.path == whole.path);
      CHECK(pieces.method == whole.method && pieces.content_type == whole.content_type);
      CHECK(pieces.keep_alive == whole.keep_alive);
    } else {
      CHECK(whole.parse.status == http::Parse::Status::refused);
    }
    break;
  }
  return 0;
}
