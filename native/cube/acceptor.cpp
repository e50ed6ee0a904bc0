#include "acceptor.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "threads.hpp"

namespace cloudedge::cube {
namespace {

Descriptor open_spare() { return Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

Acceptor::Acceptor(Descriptor listener, Take take, Full full)
    : listener_(std::move(listener)),
      wakeup_(::eventfd(0, EFD_CLOEXEC)),
      spare_(open_spare()),
      take_(std::move(take)),
      full_(std::move(full)),
      thread_(start_thread("cube-accept", [this] { run(); })) {}

void Acceptor::stop() {
  const std::lock_guard once(stopping_);
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wakeup_.get(), &one, sizeof one);
  thread_.join();
  listener_.close();
}

void Acceptor::run() {
  pollfd watched[] = {{listener_.get(), POLLIN, 0}, {wakeup_.get(), POLLIN, 0}};
  while (true) {
    if (::poll(watched, 2, -1) < 0 && errno != EINTR) return;
    if (watched[1].revents != 0) break;
    if (watched[0].revents != 0) accept_all();
  }
  accept_all();  // clients that have connected already are served before the drain
}

void Acceptor::accept_all() {
  while (true) {
    Address peer;
    peer.size = sizeof peer.storage;
    auto* const address = reinterpret_cast<sockaddr*>(&peer.storage);
    Descriptor connection(::accept4(listener_.get(), address, &peer.size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (connection && !full_(accepted_)) {
      ++accepted_;
      send_at_once(connection.get());
      take_(std::move(connection), peer.is_loopback());
      continue;
    }
    if (connection) {
      ++turned_away_;
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno != EMFILE && errno != ENFILE) return;  // EAGAIN, mostly
    // Out of descriptors: epoll would report the waiting connection for ever. Refuse it instead.
    spare_.close();
    Descriptor away(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const bool made_progress = static_cast<bool>(away);
    if (made_progress) ++turned_away_;
    away.close();
    spare_ = open_spare();
    if (!made_progress) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
  }
}

}  // namespace cloudedge::cube
