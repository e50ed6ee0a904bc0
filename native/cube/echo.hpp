// A server that answers every frame with the same bytes: measures the event loop and the kernel without any lookup. For
// benchmarks; it is an upper bound for a real server.
#pragma once

#include <algorithm>
#include <string>

#include "loop.hpp"
#include "wire.hpp"

namespace cloudedge::cube {

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

}  // namespace cloudedge::cube
