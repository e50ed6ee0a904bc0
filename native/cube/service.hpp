// The protocols of a cube server's data port: DictService over baidu_std and HTTP, the control service, and the few
// brpc pages that tools read. One Service per loop thread; Shared holds their common state.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "catalog.hpp"
#include "control.hpp"
#include "loop.hpp"
#include "seek.hpp"

namespace cloudedge::cube {

struct Shared {
  Shared(const Limits& limits, Catalog& catalog, Control& control, bool remote_control)
      : limits(limits), catalog(catalog), control(control), remote_control(remote_control) {}

  const Limits limits;
  Catalog& catalog;
  Control& control;
  const bool remote_control;               // accept control commands from other hosts
  std::atomic<bool> draining = false;      // answer, but ask HTTP clients to disconnect
  std::atomic<bool> refusing = false;      // answer that the server is stopping
  std::function<std::string()> vars_page;  // set before the loops start
};

class Service final : public Handler {
 public:
  Service(Shared& shared, Counters& counters, Loop& loop)
      : shared_(shared),
        loop_(loop),
        counters_(counters),
        seeker_(shared.limits, shared.catalog.versions(), counters) {}

  Handled handle(Connection& connection, wire::Bytes input, Buffer& out) override;

 private:
  Handled frame(Connection& connection, wire::Bytes frame, const wire::Header& header, Buffer& out);
  Handled http(Connection& connection, wire::Bytes input, Buffer& out);
  Handled answer_http(Connection& connection, wire::Bytes input, Buffer& out);
  Handled http_control(Connection& connection, const http::Request& request, const Handled& answered, Buffer& out);
  Failure page(const http::Request& request, http::Response& response);

  // Answers a control command, now (`answered`) or later; `reply` writes it in the connection's protocol.
  template <class Reply>
  Handled control(const Connection& connection, wire::Bytes command, const Handled& answered, Buffer& out, Reply reply);
  bool may_control(const Connection& connection) const;

  Shared& shared_;
  Loop& loop_;
  Counters& counters_;
  Seeker seeker_;
  Buffer chunked_;
  Buffer body_;
};

}  // namespace cloudedge::cube
