// Resolves a host's address. Name resolution cannot be interrupted and may take longer than any caller wants to wait,
// so it runs in a thread of its own; a numeric address needs none.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "socket.hpp"

namespace cloudedge::cube {

class Host {
 public:
  // Starts the resolution.
  Host(const std::string& name, std::uint16_t port);

  // The last resolved address; waits for the first one until `until_ns`. None: errno has the reason.
  std::optional<Address> address(std::int64_t until_ns);
  // Resolves again because the address does not work; the old one is used until a new one is found.
  void refresh();

 private:
  struct Search {  // shared with the resolving thread, which may outlive the host
    std::string name;
    std::uint16_t port;
    std::mutex mutex;
    std::condition_variable ended;
    std::optional<Address> address;
    bool looking = false;
    bool is_number = false;
  };

  static void look(const std::shared_ptr<Search>& search);

  std::shared_ptr<Search> search_;
};

}  // namespace cloudedge::cube
