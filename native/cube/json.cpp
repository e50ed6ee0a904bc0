#include "json.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>

namespace cloudedge::cube::json {
namespace {

constexpr int kMaxDepth = 64;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Reads one JSON text from left to right. Every method returns false at the first wrong byte.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  std::size_t position() const { return at_; }

  char next() {  // the next byte that is not white space, or 0
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool take(char c) {
    if (next() != c) return false;
    ++at_;
    return true;
  }

  bool literal(std::string_view word) {
    next();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  bool at_end() { return next() == '\0' && at_ == text_.size(); }

  bool string(std::string& out) {
    out.clear();
    if (!take('"')) return false;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') return true;
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c != '\\') {
        out.push_back(c);
      } else if (!escape(out)) {
        return false;
      }
    }
    return false;
  }

  // An unsigned 64-bit integer, bare or in quotes.
  bool unsigned_integer(std::uint64_t& value) {
    const bool in_quotes = next() == '"';
    if (in_quotes) ++at_;
    const char* const first = text_.data() + at_;
    const char* const last = text_.data() + text_.size();
    if (first == last || !is_digit(*first)) return false;
    const auto [stop, failed] = std::from_chars(first, last, value);
    if (failed != std::errc()) return false;
    if (!in_quotes && *first == '0' && stop - first > 1) return false;
    at_ += static_cast<std::size_t>(stop - first);
    if (in_quotes) return at_ < text_.size() && text_[at_++] == '"';
    return at_ == text_.size() || (text_[at_] != '.' && text_[at_] != 'e' && text_[at_] != 'E');
  }

  bool skip(int depth = 0) {
    switch (next()) {
      case '{': return depth < kMaxDepth && object([&](const std::string&) { return skip(depth + 1); });
      case '[': return depth < kMaxDepth && array([&] { return skip(depth + 1); });
      case '"': return string(scratch_);
      case 't': return literal("true");
      case 'f': return literal("false");
      case 'n': return literal("null");
      default: return number();
    }
  }

  template <class Member>
  bool object(Member member) {
    if (!take('{')) return false;
    if (take('}')) return true;
    do {
      std::string name;
      if (!string(name) || !take(':') || !member(name)) return false;
    } while (take(','));
    return take('}');
  }

  template <class Element>
  bool array(Element element) {
    if (!take('[')) return false;
    if (take(']')) return true;
    do {
      if (!element()) return false;
    } while (take(','));
    return take(']');
  }

 private:
  bool digits() {
    const std::size_t start = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    return at_ > start;
  }

  bool number() {
    if (at_ < text_.size() && text_[at_] == '-') ++at_;
    const std::size_t start = at_;
    if (!digits() || (text_[start] == '0' && at_ - start > 1)) return false;
    if (at_ < text_.size() && text_[at_] == '.') {
      ++at_;
      if (!digits()) return false;
    }
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      ++at_;
      if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
      if (!digits()) return false;
    }
    return true;
  }

  bool hex4(std::uint32_t& code) {
    if (text_.size() - at_ < 4) return false;
    const char* const first = text_.data() + at_;
    const auto [stop, failed] = std::from_chars(first, first + 4, code, 16);
    at_ += 4;
    return failed == std::errc() && stop == first + 4;
  }

  bool escape(std::string& out) {
    if (at_ == text_.size()) return false;
    switch (text_[at_++]) {
      case '"': out.push_back('"'); return true;
      case '\\': out.push_back('\\'); return true;
      case '/': out.push_back('/'); return true;
      case 'b': out.push_back('\b'); return true;
      case 'f': out.push_back('\f'); return true;
      case 'n': out.push_back('\n'); return true;
      case 'r': out.push_back('\r'); return true;
      case 't': out.push_back('\t'); return true;
      case 'u': break;
      default: return false;
    }
    std::uint32_t code;
    if (!hex4(code)) return false;
    if (code >= 0xdc00 && code < 0xe000) return false;
    if (code >= 0xd800 && code < 0xdc00) {  // the first half of a surrogate pair
      std::uint32_t low;
      if (!literal_here("\\u") || !hex4(low) || low < 0xdc00 || low >= 0xe000) return false;
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    append_utf8(out, code);
    return true;
  }

  bool literal_here(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  static void append_utf8(std::string& out, std::uint32_t code) {
    if (code < 0x80) {
      out.push_back(static_cast<char>(code));
      return;
    }
    const int tail = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    constexpr std::uint8_t kLead[] = {0, 0xc0, 0xe0, 0xf0};
    out.push_back(static_cast<char>(kLead[tail] | code >> (6 * tail)));
    for (int i = tail - 1; i >= 0; --i) out.push_back(static_cast<char>(0x80 | (code >> (6 * i) & 0x3f)));
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string scratch_;
};

}  // namespace

wire::Parsed parse_seek(std::string_view body, std::size_t max_keys, wire::SeekRequest& request,
                        std::string& pin_storage, std::string& error) {
  // A key takes at least two bytes: a digit and a comma or bracket.
  request.keys.reset(std::min(body.size() / 2, max_keys));
  request.version_required = false;
  request.pin.reset();
  bool too_many = false;
  bool seen[3] = {};
  Cursor cursor(body);
  const auto once = [](bool& flag) { return !std::exchange(flag, true); };
  const auto member = [&](const std::string& name) {
    const int field = name == "keys" ? 0 : name == "version_required" ? 1 : name == "version" ? 2 : -1;
    if (field < 0) return cursor.skip();
    if (!once(seen[field])) return false;
    if (cursor.next() == 'n') return cursor.literal("null");
    switch (field) {
      case 0:
        return cursor.array([&] {
          std::uint64_t key;
          if (!cursor.unsigned_integer(key)) return false;
          too_many = !request.keys.add(key);
          return !too_many;
        });
      case 1:
        request.version_required = cursor.next() == 't';
        return cursor.literal(request.version_required ? "true" : "false");
      default:
        if (!cursor.string(pin_storage)) return false;
        request.pin = pin_storage;
        return pin_storage.size() <= wire::kMaxPin;
    }
  };
  if (cursor.object(member) && cursor.at_end()) return wire::Parsed::ok;
  if (too_many) {
    error = "more than " + std::to_string(max_keys) + " keys in one request";
    return wire::Parsed::too_many_keys;
  }
  if (request.pin && request.pin->size() > wire::kMaxPin) {
    error = "the pin is longer than " + std::to_string(wire::kMaxPin) + " bytes";
    return wire::Parsed::pin_too_long;
  }
  error = "the body is not the JSON of a seek; it stops fitting at byte " + std::to_string(cursor.position());
  return wire::Parsed::malformed;
}

bool parse_strings(std::string_view body, std::map<std::string, std::string>& members) {
  Cursor cursor(body);
  const auto member = [&](const std::string& name) {
    if (cursor.next() != '"') {
      members.erase(name);
      return cursor.skip();
    }
    return cursor.string(members[name]);
  };
  return cursor.object(member) && cursor.at_end();
}

void write_string(Buffer& out, std::string_view text) {
  out.push('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out.push('\\');
      out.push(static_cast<std::uint8_t>(c));
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      out.append(escaped);
    } else {
      out.push(static_cast<std::uint8_t>(c));
    }
  }
  out.push('"');
}

std::string quoted(std::string_view text) {
  Buffer out;
  write_string(out, text);
  return {reinterpret_cast<const char*>(out.data()), out.size()};
}

void write_base64(Buffer& out, std::span<const std::uint8_t> bytes) {
  constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::uint8_t* at = out.prepare((bytes.size() + 2) / 3 * 4);
  out.commit((bytes.size() + 2) / 3 * 4);
  std::size_t i = 0;
  for (; i + 3 <= bytes.size(); i += 3) {
    const std::uint32_t word = std::uint32_t{bytes[i]} << 16 | std::uint32_t{bytes[i + 1]} << 8 | bytes[i + 2];
    for (int shift = 18; shift >= 0; shift -= 6) *at++ = static_cast<std::uint8_t>(kAlphabet[word >> shift & 63]);
  }
  const std::size_t rest = bytes.size() - i;
  if (rest == 0) return;
  const std::uint32_t word = std::uint32_t{bytes[i]} << 16 | (rest == 2 ? std::uint32_t{bytes[i + 1]} << 8 : 0);
  *at++ = static_cast<std::uint8_t>(kAlphabet[word >> 18]);
  *at++ = static_cast<std::uint8_t>(kAlphabet[word >> 12 & 63]);
  *at++ = static_cast<std::uint8_t>(rest == 2 ? kAlphabet[word >> 6 & 63] : '=');
  *at++ = '=';
}

void ResponseWriter::values(std::span<const Value> values, wire::Tally& tally) {
  for (const Value& value : values) {
    out_.append(any_ ? "," : "{\"values\":[");
    any_ = true;
    if (!value.found) {
      ++(value.too_long() ? tally.too_long : tally.missing);
      out_.append("{\"status\":4294967295,\"value\":\"\"}");
    } else {
      out_.append("{\"status\":0,\"value\":\"");
      write_base64(out_, {value.data, value.size});
      out_.append("\"}");
    }
  }
}

void ResponseWriter::end(const std::string* version) {
  if (any_) out_.push(']');  // an empty list is omitted, as in upstream
  if (version != nullptr) {
    out_.append(any_ ? ",\"version\":" : "{\"version\":");
    write_string(out_, *version);
  }
  out_.append(any_ || version != nullptr ? "}" : "{}");
}

}  // namespace cloudedge::cube::json
