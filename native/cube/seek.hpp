// Answers a seek of either protocol: parses the request, finds the version that must answer, looks the keys up and
// writes the values straight into the output buffer. One per loop thread, because it reuses its memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "http.hpp"
#include "inflate.hpp"
#include "stats.hpp"
#include "versions.hpp"
#include "wire.hpp"

namespace cloudedge::cube {

struct Limits {
  std::size_t max_body = 64 * 1024 * 1024;  // of a request and of an answer: brpc's own limit on both sides
  std::size_t max_keys = 1 << 18;           // in one request
  std::size_t max_connections = 20'000;

  // The most bytes that a request can have a use for: its keys in their longest form, JSON, and some room around them.
  std::size_t max_request() const { return std::min(max_body, 64 * 1024 + std::min(max_keys, max_body) * 32); }
};

struct Failure {
  std::int32_t code = wire::kOk;
  std::string text;
  explicit operator bool() const { return code != wire::kOk; }
};

class Seeker {
 public:
  Seeker(const Limits& limits, const Versions& versions, Counters& counters)
      : limits_(limits), versions_(versions), counters_(counters) {}

  // Writes a whole frame, or nothing and returns the failure.
  Failure frame(wire::Bytes payload, const wire::Meta& meta, Buffer& out);
  // Writes the body of a response: protobuf or JSON, like the request.
  Failure http(const http::Request& request, Buffer& body);

 private:
  Failure answer_frame(wire::Bytes payload, const wire::Meta& meta, Buffer& out);
  Failure answer_http(const http::Request& request, Buffer& body);
  Failure unpack(wire::Bytes& body, Packing packing);
  Failure parse(wire::Bytes payload);
  Failure find_version();
  template <class Writer>
  Failure look_up(Writer& writer, const Buffer& out);
  Failure count(Failure failure);

  const Limits limits_;
  const Versions& versions_;
  Counters& counters_;
  VersionPtr version_;  // set only while a request is answered
  wire::SeekRequest request_;
  std::string pin_;
  std::vector<Value> values_;
  Buffer unpacked_;
};

}  // namespace cloudedge::cube
