#include "replica.hpp"

#include <optional>
#include <utility>

namespace cloudedge::cube {
namespace {

constexpr unsigned kMaxAbandoned = 4;         // late answers to skip before a new connection is cheaper
constexpr std::size_t kKeepInput = 1 << 20;  // memory that an idle connection keeps

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

void Replica::drop_idle() {
  std::vector<std::unique_ptr<Link>> closed;  // closed outside the lock
  const std::lock_guard lock(mutex_);
  closed.swap(idle_);
}

}  // namespace cloudedge::cube
