// Sockets as values: addresses parsed from text, and the options of every connection.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

#include "../descriptor.hpp"

namespace cloudedge::cube {

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  bool is_loopback() const;
  std::uint16_t port() const;
  std::string text() const;  // 127.0.0.1:8000, [::1]:8000
};

// A numeric address; none when it is a name.
std::optional<Address> parse_address(const std::string& host, std::uint16_t port);

// Resolves a name or a number. Throws std::runtime_error with the host.
Address resolve(const std::string& host, std::uint16_t port);

// A listening socket. Throws std::system_error naming the address.
Descriptor listen_on(const Address& address);

// Starts connecting without waiting; an empty descriptor and errno when that fails at once.
Descriptor connect_to(const Address& address);

// The error of a finished connection attempt; 0 when it is connected.
int connect_error(int fd);

// Switches off Nagle's algorithm, which would delay the last segment of every answer.
void send_at_once(int fd);

Address local_address(int fd);

}  // namespace cloudedge::cube
