#include "host.hpp"

#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <system_error>

#include "threads.hpp"

namespace cloudedge::cube {

Host::Host(const std::string& name, std::uint16_t port) : search_(std::make_shared<Search>()) {
  search_->name = name;
  search_->port = port;
  search_->address = parse_address(name, port);
  search_->is_number = search_->address.has_value();
  refresh();
}

void Host::refresh() {
  const std::lock_guard lock(search_->mutex);
  if (search_->is_number || search_->looking) return;
  try {
    start_thread("cube-resolve", [search = search_] { look(search); }).detach();
    search_->looking = true;
  } catch (const std::system_error&) {
    // Out of threads: the next caller that needs the address tries again.
  }
}

void Host::look(const std::shared_ptr<Search>& search) {
  std::optional<Address> found;
  try {
    found = resolve(search->name, search->port);
  } catch (const std::runtime_error&) {
    // An old address, if there is one, is better than none.
  }
  {
    const std::lock_guard lock(search->mutex);
    if (found) search->address = found;
    search->looking = false;
  }
  search->ended.notify_all();
}

std::optional<Address> Host::address(std::int64_t until_ns) {
  const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(until_ns)};
  std::unique_lock lock(search_->mutex);
  if (!search_->address && !search_->looking) {
    lock.unlock();
    refresh();
    lock.lock();
  }
  search_->ended.wait_until(lock, until, [this] { return search_->address || !search_->looking; });
  if (!search_->address) errno = search_->looking ? ETIMEDOUT : EHOSTUNREACH;
  return search_->address;
}

}  // namespace cloudedge::cube
