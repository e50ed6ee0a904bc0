#include "replica.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace cloudedge::cube {
namespace {

constexpr unsigned kMaxAbandoned = 4;         // late answers to skip before a new connection is cheaper
constexpr std::size_t kKeepInput = 1 << 20;  // memory that an idle connection keeps
constexpr std::int64_t kRestNs = 1'000'000'000;
constexpr unsigned kMostDoublings = 5;
constexpr std::int64_t kLongestRestNs = 30 * kRestNs;
constexpr unsigned kLateInARow = 3;  // a replica that is joined this often without an answer is silent

std::int64_t rest_ns(unsigned strikes) {
  const unsigned doublings = std::min(strikes > 0 ? strikes - 1 : 0, kMostDoublings);
  return std::min(kLongestRestNs, kRestNs << doublings);
}

}  // namespace

Replica::Replica(const Endpoint& endpoint, std::size_t max_idle)
    : name_(endpoint.host + ":" + std::to_string(endpoint.port)),
      max_idle_(max_idle),
      host_(endpoint.host, endpoint.port) {}

std::unique_ptr<Link> Replica::take_idle() {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return nullptr;
  std::unique_ptr<Link> link = std::move(idle_.back());
  idle_.pop_back();
  return link;
}

std::unique_ptr<Link> Replica::connect(std::int64_t until_ns) {
  const std::optional<Address> address = host_.address(until_ns);
  if (!address) return nullptr;
  auto link = std::make_unique<Link>();
  link->fd = connect_to(*address);
  return link->fd ? std::move(link) : nullptr;
}

void Replica::put_back(std::unique_ptr<Link> link) {
  if (link->abandoned > kMaxAbandoned) return;
  if (link->in.empty() && link->in.capacity() > kKeepInput) link->in.release();
  const std::lock_guard lock(mutex_);
  if (idle_.size() < max_idle_) idle_.push_back(std::move(link));
}

void Replica::answered(std::int64_t now_ns) {
  last_answer_ns_.store(now_ns, std::memory_order_relaxed);
  // Read first: the stores would make the threads of a busy client fight for the cache line.
  if (late_.load(std::memory_order_relaxed) != 0) late_.store(0, std::memory_order_relaxed);
  if (strikes_.load(std::memory_order_relaxed) != 0) strikes_.store(0, std::memory_order_relaxed);
  if (avoid_until_ns_.load(std::memory_order_relaxed) != 0) avoid_until(0);
}

void Replica::silent(std::int64_t sent_ns, std::int64_t now_ns, bool proven) {
  if (last_answer_ns_.load(std::memory_order_relaxed) > sent_ns) return;  // that one request is slow
  const unsigned late = late_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (!proven && !doubtful() && late < kLateInARow) return;
  if (rested_at_ns_.load(std::memory_order_relaxed) > sent_ns) return;  // sent before the rest: no further failure
  rested_at_ns_.store(now_ns, std::memory_order_relaxed);
  avoid_until(now_ns + rest_ns(strikes_.fetch_add(1, std::memory_order_relaxed) + 1));
}

void Replica::claim(std::int64_t now_ns) {
  avoid_until(now_ns + rest_ns(strikes_.load(std::memory_order_relaxed)));
}

void Replica::drop_idle() {
  std::vector<std::unique_ptr<Link>> closed;  // closed outside the lock
  const std::lock_guard lock(mutex_);
  closed.swap(idle_);
}

}  // namespace cloudedge::cube
