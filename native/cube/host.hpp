// Where a host is. Looking a name up cannot be interrupted and may take longer than any caller wants to wait, so it
// happens in a thread of its own; a number needs none.
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
  // Starts looking.
  Host(const std::string& name, std::uint16_t port);

  // The address as last found, waited for until `until_ns` if there is none yet. None: errno says why.
  std::optional<Address> address(std::int64_t until_ns);
  // Looks again, since the address is of no use; the old one serves until another is found.
  void refresh();

 private:
  struct Search {  // shared with the looking thread, which may outlive the host
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
