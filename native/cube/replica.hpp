// One server that a client may ask: its address, its idle connections, the number of requests in flight to it, and
// whether it is left alone after a failure. A silent replica rests: 1 s, then twice as long each time, up to 30 s. When
// its rest is over, one call asks it, joined soon by another replica; an answer ends its rests.
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

// A connection to a replica. Used by one call at a time; late answers to requests that a call gave up on are
// distinguished by their correlation id.
struct Link {
  Descriptor fd;
  Buffer in;
  std::uint64_t last_id = 0;  // id of the newest request sent on it
  unsigned abandoned = 0;     // abandoned requests whose answers are still to come
  std::size_t last_size = 0;  // size of the last answer: the next one is likely to need as much room
};

class Replica {
 public:
  Replica(const Endpoint& endpoint, std::size_t max_idle);

  const std::string& name() const { return name_; }

  // An idle connection, or null.
  std::unique_ptr<Link> take_idle();
  // Starts a new connection; null and errno when that fails at once, or when the address is still unknown at
  // `until_ns`.
  std::unique_ptr<Link> connect(std::int64_t until_ns);
  void put_back(std::unique_ptr<Link> link);
  // Closes all idle connections: one of them was dead, so the others are, too.
  void drop_idle();

  // For a replica that refuses: asking it costs nothing, so this time does not grow.
  void avoid_until(std::int64_t ns) { avoid_until_ns_.store(ns, std::memory_order_relaxed); }
  bool avoided(std::int64_t now_ns) const { return avoid_until_ns_.load(std::memory_order_relaxed) > now_ns; }

  // It answered a request.
  void answered(std::int64_t now_ns);
  // It did not answer a request that was sent at `sent_ns`; `proven`: that took so long that it counts by itself.
  void silent(std::int64_t sent_ns, std::int64_t now_ns, bool proven);
  // Its last requests got no answer.
  bool doubtful() const { return strikes_.load(std::memory_order_relaxed) > 0; }
  // Keeps other calls away from a doubtful replica while one tries it.
  void claim(std::int64_t now_ns);
  void resolve_again() { host_.refresh(); }

  std::atomic<int> in_flight = 0;

 private:
  const std::string name_;
  const std::size_t max_idle_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Link>> idle_;
  Host host_;
  std::atomic<std::int64_t> avoid_until_ns_ = 0;
  std::atomic<std::int64_t> last_answer_ns_ = 0;
  std::atomic<std::int64_t> rested_at_ns_ = 0;
  std::atomic<unsigned> strikes_ = 0;  // rests in a row
  std::atomic<unsigned> late_ = 0;     // requests in a row that another replica answered first
};

}  // namespace cloudedge::cube
