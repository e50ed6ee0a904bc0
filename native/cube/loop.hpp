// One thread's event loop: reads, passes complete or half messages to a handler, writes its answers. It owns the
// connections, their deadlines and their memory; it knows no protocol.
//
// Rules:
// - an idle connection holds no buffer: input and output go through the loop's own, which stay in the cache;
// - messages that arrived together are answered together, in one write;
// - a peer that does not read its answers is not read from, so that nothing queues up behind it;
// - an unfinished message, an untaken answer and an unused connection each have a deadline;
// - the bytes waiting in all connections have a limit, and the connection that would exceed it is closed.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "buffer.hpp"
#include "http.hpp"
#include "socket.hpp"
#include "spin.hpp"
#include "stats.hpp"

namespace cloudedge::cube {

// The limits of a loop.
struct Patience {
  std::int64_t idle_ms = 600'000;    // between messages
  std::int64_t message_ms = 30'000;  // from a message's first byte to its last
  std::int64_t write_ms = 30'000;    // without the peer taking a byte of its answer
  std::int64_t linger_ms = 1'000;    // for the peer to close after a refusal
  std::size_t held_bytes = 1 << 30;  // of half messages and untaken answers, over all connections
  std::int64_t spin_us = 100;        // of polling before sleeping, when that pays; 0: never
};

struct Connection {
  enum class State { idle, receiving, stalled, waiting, lingering };

  Descriptor fd;
  std::uint64_t id = 0;
  bool from_loopback = false;
  http::Progress progress;  // the handler's, for the current message

  // The loop's own state.
  State state = State::idle;
  std::int64_t since_ns = 0;  // start of this state, or of the last progress in it
  Buffer in;                  // half a message, or messages that wait for the peer to read
  Buffer out;                 // bytes that the peer has not taken yet
  std::size_t needed = 0;     // least size of `in` before it is parsed again
  bool waiting = false;  // for Loop::answer
  bool closing = false;  // once `out` is sent
  bool ended = false;    // the peer will send no more
  std::uint32_t events = 0;
  std::size_t held = 0;  // bytes in `in` and `out`, as accounted
  bool dropped = false;  // gave up its bytes, and is closed after the events under way
};

struct Handled {
  enum class Verdict {
    more,   // half a message; `size`: its least possible size
    taken,  // `size` bytes, answered in `out`
    wait,   // `size` bytes, answered later through Loop::answer
    close,  // answered in `out`; close once that is read
    drop,   // close at once
  } verdict;
  std::size_t size = 0;
};

class Handler {
 public:
  virtual ~Handler() = default;
  virtual Handled handle(Connection& connection, std::span<const std::uint8_t> input, Buffer& out) = 0;
};

class Loop {
 public:
  Loop(const Patience& patience, Counters& counters);
  ~Loop();

  void set_handler(std::unique_ptr<Handler> handler) { handler_ = std::move(handler); }
  void run();  // until drained or stopped

  // From any thread.
  void adopt(Descriptor fd, bool from_loopback);
  void answer(std::uint64_t connection, std::string bytes, bool then_close);
  void post(std::function<void()> task);  // runs it in the loop's thread, between two events
  void drain(std::int64_t until_ns);      // close connections as they come to rest; all of them at that time
  void stop();

 private:
  std::span<epoll_event> wait();
  void run_tasks();
  void on_event(Connection& connection, std::uint32_t events);
  void read(Connection& connection);
  void write(Connection& connection);
  Handled handle(Connection& connection, std::span<const std::uint8_t> input);
  void process(Connection& connection, std::span<const std::uint8_t> input);
  bool flush(Connection& connection);
  void settle(Connection& connection, bool progressed);
  void make_room();
  void close(Connection& connection);
  void close_dropped();
  void sweep();
  int wait_ms() const;

  Patience patience_;
  Counters& counters_;
  std::unique_ptr<Handler> handler_;
  Descriptor epoll_;
  Descriptor wakeup_;
  Spin spin_;
  std::array<epoll_event, 128> events_;
  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Connection>> connections_;
  std::unique_ptr<std::uint8_t[]> scratch_;
  Buffer out_;
  std::uint64_t next_id_ = 1;
  std::size_t held_bytes_ = 0;
  std::vector<std::uint64_t> dropped_;
  std::int64_t now_ns_ = 0;
  std::int64_t swept_ns_ = 0;
  std::int64_t sweep_every_ms_;
  std::int64_t drain_until_ns_ = 0;
  bool stopped_ = false;
};

}  // namespace cloudedge::cube
