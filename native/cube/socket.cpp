#include "socket.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace cloudedge::cube {
namespace {

// The first address of a host; getaddrinfo's error otherwise.
int find(const std::string& host, std::uint16_t port, int flags, Address& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed != 0) return failed;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.size = found->ai_addrlen;
  ::freeaddrinfo(found);
  return 0;
}

}  // namespace

bool Address::is_loopback() const {
  if (storage.ss_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, &storage, sizeof in);
    return ntohl(in.sin_addr.s_addr) >> 24 == 127;
  }
  sockaddr_in6 in6;
  std::memcpy(&in6, &storage, sizeof in6);
  if (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) return in6.sin6_addr.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr);
}

std::uint16_t Address::port() const {
  sockaddr_in in;  // the port has the same offset in both families
  std::memcpy(&in, &storage, sizeof in);
  return ntohs(in.sin_port);
}

std::string Address::text() const {
  char host[NI_MAXHOST] = "?";
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&storage), size, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  std::string out = host;
  if (storage.ss_family == AF_INET6) out = std::string(1, '[').append(out).append("]");
  return out + ":" + std::to_string(port());
}

std::optional<Address> parse_address(const std::string& host, std::uint16_t port) {
  Address address;
  return find(host, port, AI_NUMERICHOST, address) == 0 ? std::optional(address) : std::nullopt;
}

Address resolve(const std::string& host, std::uint16_t port) {
  Address address;
  if (const int failed = find(host, port, 0, address); failed != 0) {
    throw std::runtime_error("cannot resolve " + host + ": " + ::gai_strerror(failed));
  }
  return address;
}

Descriptor listen_on(const Address& address) {
  const auto fail = [&] { throw std::system_error(errno, std::generic_category(), "listen on " + address.text()); };
  Descriptor fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) fail();
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0) fail();
  if (::listen(fd.get(), SOMAXCONN) != 0) fail();
  return fd;
}

Descriptor connect_to(const Address& address) {
  Descriptor fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return fd;
  send_at_once(fd.get());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0 &&
      errno != EINPROGRESS) {
    const int failed = errno;
    fd.close();
    errno = failed;
  }
  return fd;
}

int connect_error(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

void send_at_once(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Address local_address(int fd) {
  Address address;
  address.size = sizeof address.storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) address.size = 0;
  return address;
}

}  // namespace cloudedge::cube
