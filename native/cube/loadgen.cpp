#include "loadgen.hpp"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <system_error>

#include "histogram.hpp"
#include "random.hpp"
#include "socket.hpp"
#include "stats.hpp"
#include "wire.hpp"

namespace cloudedge::cube {
namespace {

constexpr std::size_t kScripts = 128;     // prepared requests, sent in turn
constexpr std::uint64_t kLookInto = 16;   // one answer in this many is parsed completely
constexpr std::size_t kScratch = 256 * 1024;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error("load generator: " + what); }

// A number after its mark, as Redis writes lengths: *3, $36.
void write_length(Buffer& out, char mark, std::size_t value) {
  out.push(static_cast<std::uint8_t>(mark));
  out.append(std::to_string(value));
  out.append("\r\n");
}

void write_mget(Buffer& out, std::span<const std::uint64_t> keys) {
  write_length(out, '*', keys.size() + 1);
  out.append("$4\r\nMGET\r\n");
  for (const std::uint64_t key : keys) {
    out.append("$8\r\n");
    out.append(&key, sizeof key);
    out.append("\r\n");
  }
}

struct Stream {
  Descriptor fd;
  std::size_t script = 0;
  std::size_t sent = 0;
  std::size_t received = 0;
  std::size_t expected = 0;  // bytes of the answer, once known
  std::int64_t started_ns = 0;
  std::uint64_t answers = 0;
  bool wants_write = false;
  Buffer kept;  // the part of the answer that will be parsed, so far
};

class Generator {
 public:
  explicit Generator(const Traffic& options)
      : options_(options), epoll_(::epoll_create1(EPOLL_CLOEXEC)), scratch_(new std::uint8_t[kScratch]) {
    std::uint64_t random = options.seed;
    std::vector<std::uint64_t> keys(options.batch);
    scripts_.resize(kScripts);
    for (Buffer& script : scripts_) {
      for (std::uint64_t& key : keys) key = next_random(random) % std::max<std::uint64_t>(1, options.key_space);
      if (options.peer == Peer::redis) {
        write_mget(script, keys);
      } else {
        wire::write_request(script, 1, keys, options.pin);
      }
    }
    if (options.peer == Peer::redis) {
      const std::size_t value = std::to_string(options.value_bytes).size() + 3 + options.value_bytes + 2;
      redis_answer_ = std::to_string(options.batch).size() + 3 + options.batch * value;
    }
    values_.resize(options.batch);
    connect();
  }

  TrafficResult run() {
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      streams_[i]->script = i * 7 % kScripts;
      start(*streams_[i]);
    }
    const std::int64_t begin_ns = now_ns() + static_cast<std::int64_t>(options_.warmup_seconds * 1e9);
    const std::int64_t end_ns = begin_ns + static_cast<std::int64_t>(options_.seconds * 1e9);
    const int wait_ms = options_.poll ? 0 : 1000;
    std::array<epoll_event, 64> events;
    std::int64_t answered_ns = now_ns();
    for (now_ns_ = answered_ns; now_ns_ < end_ns;) {
      const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_ms);
      now_ns_ = now_ns();
      measuring_ = now_ns_ >= begin_ns;
      if (count > 0) answered_ns = now_ns_;
      if (now_ns_ > answered_ns + 10'000'000'000) fail("no answer for ten seconds");
      for (int i = 0; i < count; ++i) on_event(*static_cast<Stream*>(events[static_cast<std::size_t>(i)].data.ptr));
    }
    result_.seconds = options_.seconds;
    result_.keys = result_.requests * options_.batch;
    result_.p50_us = times_.percentile_us(0.50);
    result_.p99_us = times_.percentile_us(0.99);
    result_.max_us = times_.max_us();
    return result_;
  }

 private:
  void connect() {
    const Address address = resolve(options_.host, options_.port);
    for (unsigned i = 0; i < options_.connections; ++i) {
      auto stream = std::make_unique<Stream>();
      stream->fd = connect_to(address);
      if (!stream->fd) fail("connect to " + address.text() + ": " + std::strerror(errno));
      pollfd wait = {stream->fd.get(), POLLOUT, 0};
      const int ready = ::poll(&wait, 1, 5000);
      const int error = ready == 1 ? connect_error(stream->fd.get()) : ETIMEDOUT;
      if (error != 0) fail("connect to " + address.text() + ": " + std::strerror(error));
      epoll_event event{.events = EPOLLIN, .data = {.ptr = stream.get()}};
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, stream->fd.get(), &event);
      streams_.push_back(std::move(stream));
    }
  }

  void start(Stream& stream) {
    stream.script = (stream.script + 1) % kScripts;
    stream.sent = stream.received = 0;
    stream.expected = redis_answer_;
    stream.kept.clear();
    stream.started_ns = now_ns();
    send(stream);
  }

  void send(Stream& stream) {
    const Buffer& script = scripts_[stream.script];
    while (stream.sent < script.size()) {
      const ssize_t sent =
          ::send(stream.fd.get(), script.data() + stream.sent, script.size() - stream.sent, MSG_NOSIGNAL);
      if (sent < 0 && errno == EAGAIN) break;
      if (sent < 0) fail(std::string("send: ") + std::strerror(errno));
      stream.sent += static_cast<std::size_t>(sent);
    }
    const bool wants_write = stream.sent < script.size();
    if (wants_write == stream.wants_write) return;
    stream.wants_write = wants_write;
    epoll_event event{.events = EPOLLIN | (wants_write ? EPOLLOUT : 0u), .data = {.ptr = &stream}};
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, stream.fd.get(), &event);
  }

  void on_event(Stream& stream) {
    if (stream.wants_write) send(stream);
    const ssize_t got = ::recv(stream.fd.get(), scratch_.get(), kScratch, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got < 0) fail(std::string("receive: ") + std::strerror(errno));
    if (got == 0) fail("the server closed the connection");
    const bool whole = stream.answers % kLookInto == 0;
    const auto size = static_cast<std::size_t>(got);
    if (whole || stream.kept.size() < wire::kHeaderSize) stream.kept.append(scratch_.get(), size);
    stream.received += size;
    if (stream.expected == 0 && stream.kept.size() >= wire::kHeaderSize) {
      wire::Header header;
      if (wire::parse_header(stream.kept.bytes(), 64 << 20, header) != wire::Head::frame) fail("not a frame");
      stream.expected = wire::kHeaderSize + header.body;
    }
    if (stream.expected == 0 || stream.received < stream.expected) return;
    if (stream.received > stream.expected) fail("an answer is longer than it should be");
    if (whole) look_into(stream.kept.bytes());
    ++stream.answers;
    if (measuring_) {
      times_.add(now_ns() - stream.started_ns);
      ++result_.requests;
    }
    start(stream);
  }

  void look_into(wire::Bytes answer) {
    if (options_.peer == Peer::echo) return;
    result_.checked_keys += options_.batch;
    if (options_.peer == Peer::redis) {
      Buffer head;
      write_length(head, '*', options_.batch);
      write_length(head, '$', options_.value_bytes);
      if (std::memcmp(answer.data(), head.data(), head.size()) != 0) fail("Redis did not answer with the values");
      return;
    }
    wire::Header header;
    wire::Meta meta;
    wire::parse_header(answer, 64 << 20, header);
    if (!wire::parse_meta(answer.subspan(wire::kHeaderSize, header.meta), meta) || !meta.is_response) fail("no meta");
    if (meta.error_code != 0) fail("the server answered: " + std::string(meta.error_text));
    std::optional<std::string_view> version;
    if (!wire::parse_response(answer.subspan(wire::kHeaderSize + header.meta), values_, version)) {
      fail("an answer does not have one value per key");
    }
    for (const Value& value : values_) result_.missing += value.found ? 0 : 1;
  }

  const Traffic& options_;
  Descriptor epoll_;
  std::unique_ptr<std::uint8_t[]> scratch_;
  std::vector<Buffer> scripts_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<Value> values_;
  std::size_t redis_answer_ = 0;
  std::int64_t now_ns_ = 0;
  bool measuring_ = false;
  Histogram times_;
  TrafficResult result_;
};

}  // namespace

TrafficResult generate_load(const Traffic& options) { return std::make_unique<Generator>(options)->run(); }

void fill_redis(const std::string& host, std::uint16_t port, std::span<const std::uint64_t> keys,
                const std::uint8_t* values, std::size_t width) {
  constexpr std::size_t kAtOnce = 1000;
  constexpr std::string_view kOk = "+OK\r\n";
  const Address address = resolve(host, port);
  Descriptor fd = connect_to(address);
  if (!fd) fail("connect to " + address.text() + ": " + std::strerror(errno));
  const auto wait = [&](short events) {
    pollfd one = {fd.get(), events, 0};
    if (::poll(&one, 1, 10'000) != 1) fail("Redis does not answer");
  };
  wait(POLLOUT);
  for (std::size_t at = 0; at < keys.size(); at += kAtOnce) {
    const std::size_t count = std::min(kAtOnce, keys.size() - at);
    Buffer out;
    write_length(out, '*', 2 * count + 1);
    out.append("$4\r\nMSET\r\n");
    for (std::size_t i = at; i < at + count; ++i) {
      out.append("$8\r\n");
      out.append(&keys[i], sizeof keys[i]);
      out.append("\r\n");
      write_length(out, '$', width);
      out.append(values + i * width, width);
      out.append("\r\n");
    }
    while (!out.empty()) {
      const ssize_t sent = ::send(fd.get(), out.data(), out.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN) fail(std::string("send to Redis: ") + std::strerror(errno));
      if (sent < 0) {
        wait(POLLOUT);
      } else {
        out.consume(static_cast<std::size_t>(sent));
      }
    }
    std::string answer;
    while (answer.size() < kOk.size()) {
      wait(POLLIN);
      char bytes[64];
      const ssize_t got = ::recv(fd.get(), bytes, sizeof bytes, 0);
      if (got <= 0) fail("Redis closed the connection");
      answer.append(bytes, static_cast<std::size_t>(got));
    }
    if (answer != kOk) fail("Redis answered MSET with " + answer);
  }
}

}  // namespace cloudedge::cube
