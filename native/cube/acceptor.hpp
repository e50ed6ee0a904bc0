// Accepts connections in a thread of its own and distributes them over the loops in turn. Limits the number of
// connections and survives running out of file descriptors.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "socket.hpp"

namespace cloudedge::cube {

class Acceptor {
 public:
  using Take = std::function<void(Descriptor connection, bool from_loopback)>;
  using Full = std::function<bool(std::uint64_t accepted)>;  // accepted since the start

  Acceptor(Descriptor listener, Take take, Full full);
  ~Acceptor() { stop(); }

  // Closes the listening socket; accepted connections stay.
  void stop();
  std::uint64_t turned_away() const { return turned_away_; }

 private:
  void run();
  void accept_all();

  Descriptor listener_;
  Descriptor wakeup_;
  Descriptor spare_;  // closed to accept and refuse one more connection when descriptors run out
  Take take_;
  Full full_;
  std::uint64_t accepted_ = 0;
  std::mutex stopping_;
  std::atomic<std::uint64_t> turned_away_ = 0;
  std::thread thread_;
};

}  // namespace cloudedge::cube
