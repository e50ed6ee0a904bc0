#include "loop.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

namespace cloudedge::cube {
namespace {

constexpr std::size_t kScratch = 64 * 1024;       // read at once: several requests of thousands of keys
constexpr std::size_t kFlushAt = 256 * 1024;      // of answers collected before they are sent
constexpr std::size_t kMaxRead = 1024 * 1024;     // read at once, of a message whose size is known
constexpr std::size_t kKeepInput = 16 * 1024;     // memory kept once a half message is complete
constexpr std::size_t kKeepOutput = 4 * 1024 * 1024;
constexpr std::int64_t kQuietNs = 100'000'000;    // silence after which a draining loop closes a connection
constexpr std::int64_t kDrainSweepMs = 20;

Descriptor checked(int fd, const char* what) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
  return Descriptor(fd);
}

}  // namespace

Loop::Loop(const Patience& patience, Counters& counters)
    : patience_(patience),
      counters_(counters),
      epoll_(checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      wakeup_(checked(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")),
      spin_(patience.spin_us),
      scratch_(std::make_unique_for_overwrite<std::uint8_t[]>(kScratch)) {
  const std::int64_t shortest =
      std::min({patience.idle_ms, patience.message_ms, patience.write_ms, patience.linger_ms});
  sweep_every_ms_ = std::clamp<std::int64_t>(shortest / 4, 10, 1000);
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wakeup_.get(), &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
}

Loop::~Loop() = default;

void Loop::run() {
  while (!stopped_ && !(drain_until_ns_ != 0 && connections_.empty())) {
    bool woken = false;
    for (const epoll_event& event : wait()) {
      if (event.data.ptr == nullptr) {
        woken = true;
      } else {
        on_event(*static_cast<Connection*>(event.data.ptr), event.events);
      }
    }
    if (woken) run_tasks();  // after the events: a task may close a connection that had one
    if (!dropped_.empty()) close_dropped();
    const std::int64_t every_ms = drain_until_ns_ != 0 ? kDrainSweepMs : sweep_every_ms_;
    if (now_ns_ - swept_ns_ >= every_ms * 1'000'000) sweep();
  }
  while (!connections_.empty()) close(*connections_.begin()->second);
}

// Waits for events and sets now_ns_ to the time they were seen.
std::span<epoll_event> Loop::wait() {
  const auto look = [this](int wait_ms) {
    const int count = ::epoll_wait(epoll_.get(), events_.data(), static_cast<int>(events_.size()), wait_ms);
    now_ns_ = now_ns();
    return std::span(events_.data(), static_cast<std::size_t>(std::max(count, 0)));  // -1: interrupted
  };
  const std::int64_t since_ns = now_ns();
  if (spin_.pays()) {
    do {
      if (const auto found = look(0); !found.empty()) {
        spin_.found();
        return found;
      }
    } while (now_ns_ - since_ns < spin_.limit_ns());
    spin_.missed();
  }
  const auto found = look(wait_ms());
  spin_.slept(now_ns_ - since_ns);
  return found;
}

int Loop::wait_ms() const {
  if (drain_until_ns_ != 0) return kDrainSweepMs;
  return connections_.empty() ? -1 : static_cast<int>(sweep_every_ms_);
}

void Loop::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wakeup_.get(), &one, sizeof one);  // full means woken already
}

void Loop::run_tasks() {
  std::uint64_t count;
  [[maybe_unused]] const auto got = ::read(wakeup_.get(), &count, sizeof count);
  std::vector<std::function<void()>> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
  }
  for (const auto& task : tasks) task();
}

void Loop::adopt(Descriptor fd, bool from_loopback) {
  auto made = std::make_shared<Connection>();  // std::function needs a copyable target
  made->fd = std::move(fd);
  made->from_loopback = from_loopback;
  post([this, made] {
    auto owned = std::make_unique<Connection>(std::move(*made));
    Connection& connection = *owned;
    connection.id = next_id_++;
    connection.since_ns = now_ns_;
    connection.events = EPOLLIN;
    epoll_event event{.events = connection.events, .data = {.ptr = &connection}};
    counters_.add(kOpened, 1);
    const int fd = connection.fd.get();
    connections_.emplace(connection.id, std::move(owned));
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) close(connection);
  });
}

void Loop::answer(std::uint64_t id, std::string bytes, bool then_close) {
  post([this, id, bytes = std::move(bytes), then_close] {
    const auto found = connections_.find(id);
    if (found == connections_.end() || found->second->dropped) return;  // the peer left before its answer was ready
    Connection& connection = *found->second;
    connection.waiting = false;
    connection.closing = connection.closing || then_close;
    out_.append(bytes);
    if (!flush(connection)) return;
    if (connection.out.empty() && !connection.in.empty()) {
      process(connection, {});
    } else {
      settle(connection, true);
    }
  });
}

void Loop::drain(std::int64_t until_ns) {
  post([this, until_ns] { drain_until_ns_ = until_ns; });
}

void Loop::stop() {
  post([this] { stopped_ = true; });
}

void Loop::on_event(Connection& connection, std::uint32_t events) {
  if (connection.dropped) return;
  if ((events & (EPOLLERR | EPOLLHUP)) != 0 && (events & EPOLLIN) == 0) return close(connection);
  if ((events & EPOLLOUT) != 0) return write(connection);
  if ((events & EPOLLIN) != 0) read(connection);
}

void Loop::read(Connection& connection) {
  const bool fresh = connection.in.empty();
  std::uint8_t* to = scratch_.get();
  std::size_t room = kScratch;
  if (!fresh && !connection.closing) {
    // Memory for an announced message is reserved as its bytes arrive, not before.
    const std::size_t missing = connection.needed - std::min(connection.needed, connection.in.size());
    to = connection.in.prepare(std::clamp(missing, kKeepInput, kMaxRead));
    room = connection.in.room();
  }
  const ssize_t got = ::recv(connection.fd.get(), to, room, 0);
  if (got < 0) {
    if (errno != EAGAIN && errno != EINTR) close(connection);
    return;
  }
  if (got == 0) {
    connection.ended = true;
    return settle(connection, false);
  }
  counters_.add(kBytesIn, static_cast<std::uint64_t>(got));
  if (connection.closing) return;  // lingering: its input is ignored
  if (fresh) return process(connection, {to, static_cast<std::size_t>(got)});
  connection.in.commit(static_cast<std::size_t>(got));
  process(connection, {});
}

// Running out of memory on a message costs its connection, not the process.
Handled Loop::handle(Connection& connection, std::span<const std::uint8_t> input) {
  try {
    return handler_->handle(connection, input, out_);
  } catch (const std::bad_alloc&) {
    return {Handled::Verdict::drop};
  }
}

// Handles the messages in `fresh`, which was read into the loop's own memory, or (empty) in the connection's buffer.
void Loop::process(Connection& connection, std::span<const std::uint8_t> fresh) {
  const std::span<const std::uint8_t> input = fresh.empty() ? connection.in.bytes() : fresh;
  std::size_t used = 0;
  std::uint64_t handled = 0;
  const auto worth_a_look = [&] { return used < input.size() && input.size() - used >= connection.needed; };
  while (worth_a_look() && !connection.waiting && !connection.closing) {
    const Handled result = handle(connection, input.subspan(used));
    if (result.verdict == Handled::Verdict::drop) {
      out_.clear();
      counters_.add(kBroken, 1);
      return close(connection);
    }
    if (result.verdict == Handled::Verdict::more) {
      connection.needed = result.size;
      break;
    }
    used += result.size;
    ++handled;
    connection.needed = 0;
    connection.progress = {};
    connection.waiting = result.verdict == Handled::Verdict::wait;
    connection.closing = result.verdict == Handled::Verdict::close;
    if (out_.size() >= kFlushAt) {
      if (!flush(connection)) return;
      if (!connection.out.empty()) break;  // the rest waits until the peer has read its answers
    }
  }
  if (fresh.empty()) {
    connection.in.consume(used);
  } else {
    connection.in.append(fresh.data() + used, fresh.size() - used);
  }
  if (connection.in.empty() && connection.in.capacity() > kKeepInput) connection.in.release();
  if (!flush(connection)) return;
  if (handled > 0) counters_.latency(now_ns() - now_ns_, handled);
  settle(connection, handled > 0);
}

// Sends the handler's output; bytes that the peer does not take now move to the connection. False: the peer is gone,
// and so is the connection.
bool Loop::flush(Connection& connection) {
  if (!connection.out.empty()) {  // answers keep their order
    connection.out.append(out_.data(), out_.size());
    out_.clear();
    return true;
  }
  while (!out_.empty()) {
    const ssize_t sent = ::send(connection.fd.get(), out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) {
      connection.out.swap(out_);
      return true;
    }
    if (sent < 0) {
      out_.clear();
      close(connection);
      return false;
    }
    counters_.add(kBytesOut, static_cast<std::uint64_t>(sent));
    out_.consume(static_cast<std::size_t>(sent));
  }
  if (out_.capacity() > kKeepOutput) out_.release();
  return true;
}

void Loop::write(Connection& connection) {
  bool progressed = false;
  while (!connection.out.empty()) {
    const ssize_t sent = ::send(connection.fd.get(), connection.out.data(), connection.out.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return settle(connection, progressed);
    if (sent < 0) return close(connection);
    counters_.add(kBytesOut, static_cast<std::uint64_t>(sent));
    connection.out.consume(static_cast<std::size_t>(sent));
    progressed = true;
  }
  connection.out.release();
  if (connection.in.empty()) {
    settle(connection, true);
  } else {
    process(connection, {});
  }
}

// Determines the events that the connection waits for now, and registers exactly those with epoll.
void Loop::settle(Connection& connection, bool progressed) {
  using State = Connection::State;
  held_bytes_ -= connection.held;
  connection.held = connection.in.size() + connection.out.size();
  held_bytes_ += connection.held;
  if (held_bytes_ > patience_.held_bytes) make_room();
  if (connection.dropped) return;
  State next = State::idle;
  if (!connection.out.empty()) {
    next = State::stalled;
  } else if (connection.waiting) {
    next = State::waiting;
  } else if (connection.ended) {
    return close(connection);
  } else if (connection.closing) {
    next = State::lingering;
    if (connection.state != next) ::shutdown(connection.fd.get(), SHUT_WR);
  } else if (!connection.in.empty()) {
    next = State::receiving;
  }
  if (next != connection.state || progressed) connection.since_ns = now_ns_;
  connection.state = next;
  const bool reads = next != State::stalled && next != State::waiting;
  const std::uint32_t events = reads ? EPOLLIN : next == State::stalled ? EPOLLOUT : 0u;
  if (events == connection.events) return;
  connection.events = events;
  epoll_event event{.events = events, .data = {.ptr = &connection}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.fd.get(), &event);
}

// Takes the bytes of the connections that have held some for longest until the rest is within the limit. Requests and
// answers of a good peer are held for moments, so the oldest are not its own. The last holder keeps its bytes: one
// message is always allowed. The connections are closed after the events under way, which may point to them.
void Loop::make_room() {
  std::vector<Connection*> holders;
  for (const auto& [id, connection] : connections_) {
    if (connection->held > 0) holders.push_back(connection.get());
  }
  std::ranges::sort(holders, {}, [](const Connection* each) { return std::pair(each->since_ns, each->id); });
  for (std::size_t i = 0; i + 1 < holders.size() && held_bytes_ > patience_.held_bytes; ++i) {
    Connection& oldest = *holders[i];
    held_bytes_ -= std::exchange(oldest.held, 0);
    oldest.in.release();
    oldest.out.release();
    oldest.dropped = true;
    dropped_.push_back(oldest.id);
  }
}

void Loop::close_dropped() {
  for (const std::uint64_t id : std::exchange(dropped_, {})) {
    counters_.add(kBroken, 1);
    close(*connections_.at(id));
  }
}

void Loop::close(Connection& connection) {
  counters_.add(kClosed, 1);
  held_bytes_ -= connection.held;
  connections_.erase(connection.id);
}

void Loop::sweep() {
  using State = Connection::State;
  swept_ns_ = now_ns_;
  std::vector<Connection*> late;
  for (const auto& [id, connection] : connections_) {
    const std::int64_t passed_ns = now_ns_ - connection->since_ns;
    const State state = connection->state;
    if (drain_until_ns_ != 0) {
      const bool at_rest = state == State::idle && passed_ns >= kQuietNs;
      if (at_rest || now_ns_ >= drain_until_ns_) late.push_back(connection.get());
      continue;
    }
    const std::int64_t allowed_ms = state == State::idle        ? patience_.idle_ms
                                    : state == State::receiving ? patience_.message_ms
                                    : state == State::stalled   ? patience_.write_ms
                                    : state == State::lingering ? patience_.linger_ms
                                                                : INT64_MAX / 1'000'000;
    if (passed_ns >= allowed_ms * 1'000'000) late.push_back(connection.get());
  }
  for (Connection* connection : late) {
    if (drain_until_ns_ == 0 && connection->state != State::lingering) counters_.add(kTimedOut, 1);
    close(*connection);
  }
}

}  // namespace cloudedge::cube
