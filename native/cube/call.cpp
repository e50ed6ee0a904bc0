#include "call.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "stats.hpp"

namespace cloudedge::cube {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kAvoidNs = 1'000 * kMs;  // how long a replica is avoided after a refusal
constexpr std::int64_t kSilentNs = 50 * kMs;    // a shorter silence proves nothing by itself
constexpr std::int64_t kDoubtfulMs = 50;        // a doubtful replica is joined by another one after this time
constexpr std::size_t kReadAtLeast = 64 * 1024;
constexpr std::size_t kReadAtMost = 1024 * 1024;

// The cause of a failure. If it is the replica rather than the request, the call goes on while a replica is left that
// was not asked yet.
enum class Blame { request, replica };

// One request in flight to one replica.
struct Flight {
  Replica* replica = nullptr;
  std::unique_ptr<Link> link;
  Buffer request;
  std::uint64_t id = 0;
  std::int64_t started_ns = 0;
  bool connecting = false;
  bool reused = false;  // the connection is an old one and may be dead
  bool late = false;    // another replica was asked because this one did not answer in time
};

class ShardCall {
 public:
  ShardCall(ReplicaSet& shard, Part& part, const std::optional<std::string_view>& pin, const CallOptions& options)
      : shard_(shard), part_(part), pin_(pin), options_(options), attempts_left_(1 + options.retry) {}
  ~ShardCall() {
    for (Flight& flight : flights_) abandon(flight);
  }
  ShardCall(ShardCall&&) = default;

  bool done() const { return done_; }

  void start(std::int64_t now) {
    deadline_ns_ = now + options_.timeout_ms * kMs;
    launch(now);
  }

  // The time of the next look even if no connection has an event.
  std::int64_t wake_ns() const {
    std::int64_t wake = deadline_ns_;
    if (join_ns_ != 0) wake = std::min(wake, join_ns_);
    for (const Flight& flight : flights_) {
      if (flight.connecting) wake = std::min(wake, flight.started_ns + options_.connect_timeout_ms * kMs);
    }
    return wake;
  }

  void watch(std::vector<pollfd>& fds) const {
    for (const Flight& flight : flights_) {
      const bool writes = flight.connecting || !flight.request.empty();
      fds.push_back({flight.link->fd.get(), static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0});
    }
  }

  // Takes as many poll results as watch() added.
  void on_events(std::span<const pollfd> fds, std::int64_t now) {
    // By file descriptor, because handling one flight may remove it and add others.
    for (const pollfd& fd : fds) {
      if (fd.revents == 0 || done_) continue;
      const auto flight = std::find_if(flights_.begin(), flights_.end(),
                                       [&](const Flight& f) { return f.link->fd.get() == fd.fd; });
      if (flight != flights_.end()) on_event(*flight, now);
    }
  }

  void on_time(std::int64_t now) {
    if (done_) return;
    if (now >= deadline_ns_) {
      while (!flights_.empty() && !done_) {
        attempts_left_ = 0;
        Flight& flight = flights_.back();
        if (now - flight.started_ns >= kSilentNs) flight.replica->silent(flight.started_ns, now, true);
        fail(flights_.back(), "no answer within " + std::to_string(options_.timeout_ms) + " ms", Blame::request, now);
      }
      done_ = true;
      return;
    }
    for (std::size_t i = flights_.size(); i-- > 0 && !done_;) {
      if (flights_[i].connecting && now >= flights_[i].started_ns + options_.connect_timeout_ms * kMs) {
        flights_[i].replica->silent(flights_[i].started_ns, now, true);
        flights_[i].replica->resolve_again();
        fail(flights_[i], "not connected within " + std::to_string(options_.connect_timeout_ms) + " ms",
             Blame::replica, now);
      }
    }
    if (!done_ && join_ns_ != 0 && now >= join_ns_) {
      for (Flight& flight : flights_) flight.late = true;
      launch(now);
    }
  }

 private:
  Replica& choose(std::int64_t now) {
    const std::size_t count = shard_.replicas.size();
    const std::size_t turn = shard_.turn.fetch_add(1, std::memory_order_relaxed);
    Replica* best = nullptr;
    auto best_rank = std::pair(3, 0);
    for (std::size_t i = 0; i < count; ++i) {
      Replica& replica = *shard_.replicas[(turn + i) % count];
      const bool tried = std::find(tried_.begin(), tried_.end(), &replica) != tried_.end();
      const int load =
          options_.balance == Balance::least_loaded ? replica.in_flight.load(std::memory_order_relaxed) : 0;
      // Without a further attempt, a doubtful replica could cost the call.
      const bool left_alone = replica.avoided(now) || (replica.doubtful() && attempts_left_ == 0);
      const auto rank = std::pair(tried ? 2 : left_alone ? 1 : 0, load);
      if (best == nullptr || rank < best_rank) {
        best = &replica;
        best_rank = rank;
      }
    }
    return *best;
  }

  // Sends the request to one more replica, in addition to those already asked.
  void launch(std::int64_t now) {
    while (attempts_left_ > 0) {
      --attempts_left_;
      Replica& replica = choose(now);
      tried_.push_back(&replica);
      if (open(replica, now, true)) return;
      move_on(Blame::replica);
    }
    join_ns_ = 0;
    if (flights_.empty()) done_ = true;
  }

  void move_on(Blame blame) {
    const auto asked = [&](const auto& replica) {
      return std::find(tried_.begin(), tried_.end(), replica.get()) != tried_.end();
    };
    if (blame == Blame::request || attempts_left_ > 0) return;
    if (!std::all_of(shard_.replicas.begin(), shard_.replicas.end(), asked)) attempts_left_ = 1;
  }

  bool open(Replica& replica, std::int64_t now, bool may_reuse) {
    Flight flight;
    flight.replica = &replica;
    flight.started_ns = now;
    if (may_reuse) flight.link = replica.take_idle();
    flight.reused = flight.link != nullptr;
    if (!flight.reused) {
      flight.link = replica.connect(std::min(deadline_ns_, now_ns() + options_.connect_timeout_ms * kMs));
      flight.connecting = true;
    }
    if (flight.link == nullptr) {
      avoid(replica, now);
      part_.failures.push_back({replica.name(), std::string("connect: ") + std::strerror(errno)});
      return false;
    }
    const bool doubtful = replica.doubtful();
    if (doubtful && !replica.avoided(now)) replica.claim(now);
    flight.id = ++flight.link->last_id;
    wire::write_request(flight.request, flight.id, part_.keys, pin_);
    replica.in_flight.fetch_add(1, std::memory_order_relaxed);
    // After backup_ms, or its share of the time if that is negative, a slow replica is joined by the next one.
    std::int64_t patience_ms =
        options_.backup_ms < 0 ? options_.timeout_ms / (1 + options_.retry) : options_.backup_ms;
    const bool has_others = shard_.replicas.size() > 1;
    if (doubtful && has_others && (patience_ms == 0 || patience_ms > kDoubtfulMs)) patience_ms = kDoubtfulMs;
    join_ns_ = attempts_left_ > 0 && patience_ms > 0 ? now + patience_ms * kMs : 0;
    flights_.push_back(std::move(flight));
    if (flights_.back().reused) send(flights_.back(), now);
    return true;
  }

  void avoid(Replica& replica, std::int64_t now) {
    replica.avoid_until(now + kAvoidNs);
    replica.resolve_again();
  }

  void on_event(Flight& flight, std::int64_t now) {
    if (flight.connecting) {
      if (const int error = connect_error(flight.link->fd.get()); error != 0) {
        avoid(*flight.replica, now);
        return fail(flight, std::string("connect: ") + std::strerror(error), Blame::replica, now);
      }
      flight.connecting = false;
    }
    if (!flight.request.empty()) return send(flight, now);
    receive(flight, now);
  }

  void send(Flight& flight, std::int64_t now) {
    while (!flight.request.empty()) {
      const ssize_t sent =
          ::send(flight.link->fd.get(), flight.request.data(), flight.request.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) return;
      if (sent < 0) return lost(flight, std::string("send: ") + std::strerror(errno), now);
      flight.request.consume(static_cast<std::size_t>(sent));
    }
  }

  void receive(Flight& flight, std::int64_t now) {
    Buffer& in = flight.link->in;
    wire::Header header{};
    while (true) {
      // Late answers to abandoned requests may come first; skip them.
      while (in.size() >= wire::kHeaderSize) {
        if (wire::parse_header(in.bytes(), options_.max_body, header) != wire::Head::frame) {
          return lost(flight, "answered with something that is not a frame", now);
        }
        if (in.size() < wire::kHeaderSize + header.body) break;
        if (on_frame(flight, header, now)) return;
      }
      const std::size_t expected = in.size() >= wire::kHeaderSize ? wire::kHeaderSize + header.body - in.size() : 0;
      const std::size_t likely = in.empty() ? flight.link->last_size : expected;
      std::uint8_t* const to = in.prepare(std::max(kReadAtLeast, std::min(likely, kReadAtMost)));
      const std::size_t room = in.room();
      const ssize_t got = ::recv(flight.link->fd.get(), to, room, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got < 0) return lost(flight, std::string("receive: ") + std::strerror(errno), now);
      if (got == 0) return lost(flight, "closed the connection", now);
      in.commit(static_cast<std::size_t>(got));
      flight.reused = false;  // it has proved alive
      if (static_cast<std::size_t>(got) < std::min(room, expected == 0 ? wire::kHeaderSize : expected)) return;
    }
  }

  // Handles the frame at the front of the input. True when it ended the flight.
  bool on_frame(Flight& flight, const wire::Header& header, std::int64_t now) {
    Buffer& in = flight.link->in;
    const std::size_t size = wire::kHeaderSize + header.body;
    wire::Meta meta;
    if (!wire::parse_meta(in.bytes().subspan(wire::kHeaderSize, header.meta), meta) || !meta.is_response ||
        meta.correlation_id > flight.id) {
      lost(flight, "answered with a frame that is no answer", now);
      return true;
    }
    if (meta.correlation_id != flight.id) {
      in.consume(size);
      if (flight.link->abandoned > 0) --flight.link->abandoned;
      return false;
    }
    if (meta.error_code != 0) {
      refused(flight, meta.error_code, std::string(meta.error_text.substr(0, wire::kMaxErrorText)), size, now);
      return true;
    }
    flight.link->last_size = size;
    if (in.size() == size) {
      part_.answer.swap(in);
    } else {
      part_.answer.append(in.data(), size);
      in.consume(size);
    }
    const wire::Bytes payload = part_.answer.bytes().subspan(wire::kHeaderSize + header.meta);
    std::optional<std::string_view> version;
    part_.values.resize(part_.keys.size());
    if (meta.compress_type != 0 || !wire::parse_response(payload, part_.values, version) || !version) {
      part_.answer.clear();
      lost(flight, version ? "answered with something else than one value per key" : "answered without a version", now);
      return true;
    }
    part_.version = *version;
    part_.answered = true;
    done_ = true;
    flight.replica->answered(now);
    for (const Flight& other : flights_) {
      if (&other != &flight && other.late) {
        other.replica->silent(other.started_ns, now, now - other.started_ns >= kSilentNs);
      }
    }
    give_back(flight);
    return true;
  }

  // The replica answered with an error. Some errors concern this replica only; then another one is asked.
  void refused(Flight& flight, std::int32_t code, const std::string& text, std::size_t size, std::int64_t now) {
    const bool elsewhere = code == wire::kStopping || code == wire::kOverLimit || code == wire::kOvercrowded ||
                           code == wire::kUnknownVersion;
    if (code == wire::kStopping) flight.replica->avoid_until(now + kAvoidNs);
    if (!elsewhere) attempts_left_ = 0;
    Replica& replica = *flight.replica;
    flight.link->in.consume(size);
    give_back(flight);
    part_.failures.push_back({replica.name(), text, code});
    if (!elsewhere) return finish();
    move_on(code == wire::kStopping || code == wire::kUnknownVersion ? Blame::replica : Blame::request);
    launch(now);
  }

  // The connection is broken. An old one may have died long ago, which says nothing about the replica: it gets a new
  // connection before the attempt counts as failed.
  void lost(Flight& flight, const std::string& why, std::int64_t now) {
    if (flight.reused) {
      Replica& replica = *flight.replica;
      replica.drop_idle();
      remove(flight);
      if (open(replica, now, false)) return;
      move_on(Blame::replica);
      return launch(now);
    }
    fail(flight, why, Blame::replica, now);
  }

  void fail(Flight& flight, const std::string& why, Blame blame, std::int64_t now) {
    part_.failures.push_back({flight.replica->name(), why, 0});
    remove(flight);
    move_on(blame);
    launch(now);
  }

  void finish() {
    for (Flight& flight : flights_) abandon(flight);
    flights_.clear();
    done_ = true;
  }

  void give_back(Flight& flight) {
    flight.replica->in_flight.fetch_sub(1, std::memory_order_relaxed);
    flight.replica->put_back(std::move(flight.link));
    flights_.erase(flights_.begin() + (&flight - flights_.data()));
  }

  void remove(Flight& flight) {
    flight.replica->in_flight.fetch_sub(1, std::memory_order_relaxed);
    flights_.erase(flights_.begin() + (&flight - flights_.data()));
  }

  // Another replica was faster. A connection that has sent its whole request can be reused: the late answer is skipped
  // when it comes.
  void abandon(Flight& flight) {
    flight.replica->in_flight.fetch_sub(1, std::memory_order_relaxed);
    if (flight.connecting || !flight.request.empty()) return;
    ++flight.link->abandoned;
    flight.replica->put_back(std::move(flight.link));
  }

  ReplicaSet& shard_;
  Part& part_;
  const std::optional<std::string_view>& pin_;
  const CallOptions& options_;
  std::vector<Flight> flights_;
  std::vector<const Replica*> tried_;
  unsigned attempts_left_;
  std::int64_t deadline_ns_ = 0;
  std::int64_t join_ns_ = 0;  // when the next replica is asked without a failure; 0: never
  bool done_ = false;
};

}  // namespace

void call(std::span<const std::unique_ptr<ReplicaSet>> shards, std::span<Part> parts,
          const std::optional<std::string_view>& pin, const CallOptions& options) {
  std::vector<ShardCall> calls;
  calls.reserve(parts.size());
  std::int64_t now = now_ns();
  for (Part& part : parts) {
    calls.emplace_back(*shards[part.number], part, pin, options);
    calls.back().start(now);
  }
  std::vector<pollfd> fds;
  std::vector<std::size_t> ends(calls.size());
  while (true) {
    fds.clear();
    std::int64_t wake = INT64_MAX;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (!calls[i].done()) {
        calls[i].watch(fds);
        wake = std::min(wake, calls[i].wake_ns());
      }
      ends[i] = fds.size();
    }
    if (wake == INT64_MAX) return;
    const std::int64_t wait_ms = std::max<std::int64_t>(0, (wake - now_ns() + kMs - 1) / kMs);
    ::poll(fds.data(), fds.size(), static_cast<int>(std::min<std::int64_t>(wait_ms, 60'000)));
    now = now_ns();
    std::size_t begin = 0;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (!calls[i].done()) {
        calls[i].on_events(std::span(fds).subspan(begin, ends[i] - begin), now);
        calls[i].on_time(now);
      }
      begin = ends[i];
    }
  }
}

}  // namespace cloudedge::cube
