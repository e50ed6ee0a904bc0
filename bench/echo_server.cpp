// A server that answers every frame with the same bytes: what the event loop and the kernel cost without any lookup.
// It bounds what a real server can reach. bench/cube.py compiles it.
//
// usage: echo_server RESPONSE_BYTES; prints the port and runs until it is killed.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "cube/acceptor.hpp"
#include "cube/loop.hpp"
#include "cube/wire.hpp"

namespace {

using namespace cloudedge;
using namespace cloudedge::cube;

class EchoHandler final : public Handler {
 public:
  explicit EchoHandler(std::size_t response_bytes) {
    const std::size_t size = std::max(response_bytes, wire::kHeaderSize);
    response_.assign(size, '\0');
    response_.replace(0, 4, "PRPC");
    const std::size_t body = size - wire::kHeaderSize;
    for (int i = 0; i < 4; ++i) response_[4 + static_cast<std::size_t>(i)] = static_cast<char>(body >> 8 * (3 - i));
  }

  Handled handle(Connection&, wire::Bytes input, Buffer& out) override {
    wire::Header header;
    const wire::Head head = wire::parse_header(input, 64 << 20, header);
    if (head == wire::Head::incomplete) return {Handled::Verdict::more, wire::kHeaderSize};
    if (head != wire::Head::frame) return {Handled::Verdict::drop};
    const std::size_t size = wire::kHeaderSize + header.body;
    if (input.size() < size) return {Handled::Verdict::more, size};
    out.append(response_);
    return {Handled::Verdict::taken, size};
  }

 private:
  std::string response_;
};

}  // namespace

int main(int count, char** words) {
  if (count != 2) return 2;
  Counters counters;
  Loop loop({}, counters);
  loop.set_handler(std::make_unique<EchoHandler>(std::strtoull(words[1], nullptr, 10)));
  Descriptor listener = listen_on(resolve("127.0.0.1", 0));
  std::printf("%d\n", static_cast<int>(local_address(listener.get()).port()));
  std::fflush(stdout);
  const Acceptor acceptor(
      std::move(listener), [&](Descriptor fd, bool from_loopback) { loop.adopt(std::move(fd), from_loopback); },
      [](std::uint64_t) { return false; });
  loop.run();
}
