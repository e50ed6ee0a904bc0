// One server a client may ask: its address, the connections that are open to it and not in use, how many requests it
// is working on for us, and whether it is better left alone for a moment.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "buffer.hpp"
#include "host.hpp"
#include "socket.hpp"

namespace cloudedge::cube {

struct Endpoint {
  std::string host;
  std::uint16_t port = 0;
};

// A connection to a replica. Used by one call at a time; answers to requests that a call gave up on may still arrive
// later and are told apart by their correlation id.
struct Link {
  Descriptor fd;
  Buffer in;
  std::uint64_t last_id = 0;  // of the newest request sent on it
  unsigned abandoned = 0;     // requests nobody waits for any more
  std::size_t last_size = 0;  // of an answer: the next one is likely to need as much room
};

class Replica {
 public:
  Replica(const Endpoint& endpoint, std::size_t max_idle);

  const std::string& name() const { return name_; }

  // A connection that was used before, or null.
  std::unique_ptr<Link> take_idle();
  // A new connection on its way; null and errno when that failed at once, or when until then the address is unknown.
  std::unique_ptr<Link> connect(std::int64_t until_ns);
  void put_back(std::unique_ptr<Link> link);
  // Closes what is idle: one of them turned out to be dead, so the others are too.
  void drop_idle();

  void avoid_until(std::int64_t ns) { avoid_until_ns_.store(ns, std::memory_order_relaxed); }
  bool avoided(std::int64_t now_ns) const { return avoid_until_ns_.load(std::memory_order_relaxed) > now_ns; }
  void resolve_again() { host_.refresh(); }

  std::atomic<int> in_flight = 0;

 private:
  const std::string name_;
  const std::size_t max_idle_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Link>> idle_;
  Host host_;
  std::atomic<std::int64_t> avoid_until_ns_ = 0;
};

}  // namespace cloudedge::cube
