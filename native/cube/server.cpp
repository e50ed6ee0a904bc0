#include "server.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "threads.hpp"

namespace cloudedge::cube {

void Server::History::sample(const Snapshot& total) {
  const std::lock_guard lock(mutex_);
  samples_[count_++ % kSeconds] = total;
}

Snapshot Server::History::minute_ago() const {
  const std::lock_guard lock(mutex_);
  return count_ < kSeconds ? Snapshot{} : samples_[count_ % kSeconds];
}

Server::Server(ServerOptions options, Loader loader, PatchLoader patch_loader)
    : options_(std::move(options)),
      catalog_(std::move(loader), std::move(patch_loader)),
      control_(catalog_, options_.data_dir),
      shared_(options_.limits, catalog_, control_, options_.remote_control) {
  shared_.vars_page = [this] { return vars_page(); };
  catalog_.set_wait_for_readers([this] { wait_for_requests(); });
  const unsigned count = std::max(1u, options_.threads);
  Patience each = options_.patience;
  each.held_bytes /= count;
  for (unsigned i = 0; i < count; ++i) {
    threads_.push_back(std::make_unique<Thread>(each));
    Thread& thread = *threads_.back();
    thread.loop.set_handler(std::make_unique<Service>(shared_, thread.counters, thread.loop));
  }
}

Server::~Server() { stop(); }

void Server::start() {
  if (acceptor_ != nullptr) throw std::logic_error("a server is started once");
  Descriptor listener = listen_on(resolve(options_.host, options_.port));
  address_ = local_address(listener.get());
  for (const auto& thread : threads_) {
    thread->thread = start_thread("cube-loop", [&loop = thread->loop] { loop.run(); });
  }
  running_ = true;
  historian_ = start_thread("cube-history", [this] { keep_history(); });
  acceptor_ = std::make_unique<Acceptor>(
      std::move(listener),
      [this, next = std::size_t{0}](Descriptor connection, bool from_loopback) mutable {
        threads_[next++ % threads_.size()]->loop.adopt(std::move(connection), from_loopback);
      },
      [this](std::uint64_t accepted) { return accepted - totals()[kClosed] >= options_.limits.max_connections; });
}

void Server::drain(std::int64_t within_ms) {
  if (acceptor_ == nullptr) return;
  shared_.draining = true;
  acceptor_->stop();
  const std::int64_t until_ns = now_ns() + within_ms * 1'000'000;
  for (const auto& thread : threads_) thread->loop.drain(until_ns);
  std::thread refuse = start_thread("cube-drain", [this, within_ms] {
    std::unique_lock lock(mutex_);
    ended_.wait_for(lock, std::chrono::milliseconds(within_ms / 2), [this] { return stopping_; });
    shared_.refusing = true;
  });
  join_all();
  refuse.join();
}

void Server::stop() {
  if (acceptor_ == nullptr) return;
  acceptor_->stop();
  for (const auto& thread : threads_) thread->loop.stop();
  join_all();
}

void Server::join_all() {
  const std::lock_guard once(joining_);
  running_ = false;
  for (const auto& thread : threads_) {
    if (thread->thread.joinable()) thread->thread.join();
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ended_.notify_all();
  if (historian_.joinable()) historian_.join();
}

void Server::keep_history() {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, std::chrono::seconds(1), [this] { return stopping_; })) history_.sample(totals());
}

// Waits until every loop has run a task: all requests that it was answering have then been answered.
void Server::wait_for_requests() {
  struct Passed {
    std::mutex mutex;
    std::condition_variable all;
    std::size_t count = 0;
  };
  const auto passed = std::make_shared<Passed>();  // shared, because a loop that has ended never runs its task
  for (const auto& thread : threads_) {
    thread->loop.post([passed] {
      const std::lock_guard lock(passed->mutex);
      ++passed->count;
      passed->all.notify_one();
    });
  }
  std::unique_lock lock(passed->mutex);
  passed->all.wait_for(lock, std::chrono::seconds(1), [&] { return passed->count == threads_.size() || !running_; });
}

Snapshot Server::totals() const {
  Snapshot total;
  for (const auto& thread : threads_) total += thread->counters.read();
  return total;
}

ServerStats Server::stats() const {
  ServerStats stats;
  stats.total = totals();
  stats.last_minute = stats.total;
  const Snapshot before = history_.minute_ago();
  for (std::size_t i = 0; i < kCounters; ++i) stats.last_minute.counters[i] -= before.counters[i];
  stats.connections = stats.total[kOpened] - stats.total[kClosed];
  stats.turned_away = acceptor_ ? acceptor_->turned_away() : 0;
  return stats;
}

// The names and the format of brpc's /vars page, as far as cube defines them.
std::string Server::vars_page() const {
  const ServerStats stats = this->stats();
  const VersionPtr active = catalog_.versions().active();
  std::string page;
  const auto line = [&](const std::string& name, std::uint64_t value) {
    page += name + " : " + std::to_string(value) + "\n";
  };
  const std::uint64_t requests = stats.last_minute[kRequests];
  line("data_load_time", static_cast<std::uint64_t>(catalog_.last_load_ms()));
  line("data_size", active ? active->memory_bytes() >> 20 : 0);
  line("keys_per_request_num", requests == 0 ? 0 : stats.last_minute[kKeys] / requests);
  const auto both = [&](const std::string& name, Counter counter) {
    line(name, stats.total[counter]);
    line(name + "_minute", stats.last_minute[counter]);
  };
  both("long_value_num", kTooLong);
  both("request_num", kRequests);
  both("total_key_num", kKeys);
  both("unfound_key_num", kMissing);
  return page;
}

}  // namespace cloudedge::cube
