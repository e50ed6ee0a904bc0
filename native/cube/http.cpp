#include "http.hpp"

#include <algorithm>
#include <charconv>
#include <string>

namespace cloudedge::cube::http {
namespace {

using Status = Parse::Status;

constexpr std::size_t kMaxChunkLine = 64;  // a chunk's size in hex and rarely used extensions, without the line end

Parse refuse(int code, const char* reason) { return {.status = Status::refused, .code = code, .reason = reason}; }
Parse need(std::size_t size) { return {.status = Status::incomplete, .size = size}; }

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

bool same_word(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool is_token(std::string_view text) {
  constexpr std::string_view kPunctuation = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (lower(c) >= 'a' && lower(c) <= 'z') || (c >= '0' && c <= '9') || kPunctuation.find(c) != text.npos;
  });
}

// The line that starts at `at`, without its end; `at` moves behind it. False when the line is incomplete.
bool take_line(std::string_view text, std::size_t& at, std::string_view& line) {
  const std::size_t end = text.find('\n', at);
  if (end == std::string_view::npos) return false;
  line = text.substr(at, end - at);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  at = end + 1;
  return true;
}

struct Framing {
  bool has_length = false;
  bool chunked = false;
  bool expects_continue = false;
  std::size_t length = 0;
};

Parse parse_request_line(std::string_view line, Request& request) {
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == line.npos || first == last) return refuse(400, "the request line is not METHOD PATH VERSION\n");
  request.method = line.substr(0, first);
  request.path = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!is_token(request.method) || request.path.empty() || request.path.find(' ') != line.npos) {
    return refuse(400, "the request line is not METHOD PATH VERSION\n");
  }
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return refuse(505, "only HTTP/1.0 and 1.1 are spoken here\n");
  request.version_1_0 = version.back() == '0';
  request.keep_alive = !request.version_1_0;
  request.path = request.path.substr(0, request.path.find_first_of("?#"));
  return {.status = Status::complete};
}

Parse parse_field(std::string_view line, const Limits& limits, Request& request, Framing& framing) {
  const std::size_t colon = line.find(':');
  if (colon == line.npos || !is_token(line.substr(0, colon))) return refuse(400, "a header line is not NAME: VALUE\n");
  const std::string_view name = line.substr(0, colon);
  const std::string_view value = trim(line.substr(colon + 1));
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 && c != '\t'; };
  if (std::any_of(value.begin(), value.end(), is_control)) return refuse(400, "a header holds control characters\n");
  if (same_word(name, "content-length")) {
    std::size_t length = 0;
    const auto [stop, failed] = std::from_chars(value.data(), value.data() + value.size(), length);
    if (failed == std::errc::result_out_of_range) return refuse(413, "the body is larger than this server takes\n");
    if (failed != std::errc() || stop != value.data() + value.size()) return refuse(400, "Content-Length is no number\n");
    if (framing.has_length && framing.length != length) return refuse(400, "two different Content-Length headers\n");
    if (length > limits.body) return refuse(413, "the body is larger than this server takes\n");
    framing.has_length = true;
    framing.length = length;
  } else if (same_word(name, "transfer-encoding")) {
    if (framing.chunked || !same_word(value, "chunked")) return refuse(501, "the only transfer encoding is chunked\n");
    framing.chunked = true;
  } else if (same_word(name, "connection")) {
    if (same_word(value, "close")) request.keep_alive = false;
    if (same_word(value, "keep-alive")) request.keep_alive = true;
  } else if (same_word(name, "content-type")) {
    request.content_type = value;
  } else if (same_word(name, "content-encoding")) {
    request.content_encoding = value;
  } else if (same_word(name, "expect")) {
    framing.expects_continue = same_word(value, "100-continue");
  }
  return {.status = Status::complete};
}

// The size of the chunk whose line starts at `at`, which moves to the chunk's first byte.
Parse take_chunk_line(std::string_view text, std::size_t& at, std::size_t& size) {
  std::string_view line;
  if (!take_line(text, at, line)) {
    if (text.size() - at > kMaxChunkLine + 1) return refuse(400, "a chunk does not start with its size\n");
    return need(text.size() + 1);
  }
  const auto [stop, failed] = std::from_chars(line.data(), line.data() + line.size(), size, 16);
  if (failed != std::errc() || (stop != line.data() + line.size() && *stop != ';') || line.size() > kMaxChunkLine) {
    return refuse(400, "a chunk does not start with its size\n");
  }
  return {.status = Status::complete};
}

// Scans the chunks from where the last call stopped, without copying; complete at the end of the trailers.
Parse scan_chunks(std::string_view text, std::size_t start, const Limits& limits, Progress& progress) {
  std::size_t at = std::max(progress.scanned, start);
  while (true) {
    // Chunk lines count, too: a body of lines alone must not grow without bound.
    if (at - start > limits.body + limits.body / 2) return refuse(413, "the body is larger than this server takes\n");
    std::size_t size;
    std::size_t data = at;
    if (const Parse line = take_chunk_line(text, data, size); line.status != Status::complete) return line;
    if (size > limits.body) return refuse(413, "the body is larger than this server takes\n");
    if (size == 0) {
      at = data;
      break;
    }
    if (text.size() - data < size + 2) return need(data + size + 2);
    if (text.substr(data + size, 2) != "\r\n") return refuse(400, "a chunk does not end where its size says\n");
    at = data + size + 2;
    progress.scanned = at;
  }
  std::string_view trailer;
  const std::size_t trailers = at;
  bool ended = false;
  while (!ended && take_line(text, at, trailer)) ended = trailer.empty();
  // The same limit whether the trailers came at once or in pieces.
  if ((ended ? at : text.size()) - trailers > limits.header) {
    return refuse(431, "the trailers are longer than this server takes\n");
  }
  return ended ? Parse{.status = Status::complete, .size = at} : need(text.size() + 1);
}

bool copy_chunks(std::string_view text, std::size_t at, std::size_t max_size, Buffer& body) {
  body.clear();
  std::size_t size;
  while (take_chunk_line(text, at, size).status == Status::complete && size > 0) {
    if (size > max_size - body.size()) return false;
    body.append(text.data() + at, size);
    at += size + 2;
  }
  return true;
}

const char* reason_phrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 413: return "Content Too Large";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 505: return "HTTP Version Not Supported";
    default: return "Unknown";
  }
}

}  // namespace

Parse parse(std::span<const std::uint8_t> input, const Limits& limits, Progress& progress, Request& request,
            Buffer& chunked_body) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  request = {};
  std::size_t at = 0;
  while (at < text.size() && (text[at] == '\r' || text[at] == '\n')) ++at;  // left over from an earlier body
  // Bytes that cannot become a method are not HTTP: refuse now instead of waiting for a line that may never end.
  for (std::size_t i = at; i < text.size() && i < at + 16 && text[i] != ' '; ++i) {
    if (!is_token(text.substr(i, 1))) return refuse(400, "neither a baidu_std frame nor HTTP\n");
  }
  std::string_view line;
  Framing framing;
  bool first = true;
  while (true) {
    if (!take_line(text, at, line)) {
      if (text.size() > limits.header) return refuse(431, "the header is longer than this server takes\n");
      return need(text.size() + 1);
    }
    if (line.empty()) break;
    const Parse parsed = first ? parse_request_line(line, request) : parse_field(line, limits, request, framing);
    if (parsed.status == Status::refused) return parsed;
    first = false;
  }
  if (at > limits.header) return refuse(431, "the header is longer than this server takes\n");
  if (framing.chunked && framing.has_length) return refuse(400, "both Content-Length and Transfer-Encoding\n");

  Parse result = {.status = Status::complete, .size = at + framing.length};
  if (framing.chunked) {
    result = scan_chunks(text, at, limits, progress);
  } else if (text.size() < result.size) {
    result.status = Status::incomplete;
  }
  if (result.status == Status::incomplete && framing.expects_continue && !request.version_1_0 && !progress.continued) {
    progress.continued = result.send_continue = true;
  }
  if (result.status != Status::complete) return result;
  if (!framing.chunked) {
    request.body = input.subspan(at, framing.length);
  } else if (copy_chunks(text, at, limits.body, chunked_body)) {
    request.body = chunked_body.bytes();
  } else {
    return refuse(413, "the body is larger than this server takes\n");
  }
  return result;
}

void write_response(Buffer& out, const Request& request, const Response& response) {
  std::string head = "HTTP/1.1 " + std::to_string(response.status) + " " + reason_phrase(response.status) + "\r\n";
  if (!response.content_type.empty()) head.append("Content-Type: ").append(response.content_type).append("\r\n");
  if (response.error_code != 0) head += "x-bd-error-code: " + std::to_string(response.error_code) + "\r\n";
  if (!request.keep_alive) head += "Connection: close\r\n";
  if (request.keep_alive && request.version_1_0) head += "Connection: keep-alive\r\n";
  head += "Content-Length: " + std::to_string(response.body.size()) + "\r\n\r\n";
  out.append(head);
  if (request.method != "HEAD") out.append(response.body);
}

}  // namespace cloudedge::cube::http
