// A closed-loop load generator: a number of connections, each with one request in flight, and the time of every answer.
// Speaks to a cube server, to Redis (MGET) and to the echo server with the same code around the bytes, so that only the
// servers differ. Requests are encoded before the clock starts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "buffer.hpp"

namespace cloudedge::cube {

enum class Peer { cube, redis, echo };

struct Traffic {
  Peer peer = Peer::cube;
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  unsigned connections = 1;
  unsigned batch = 26;           // keys per request
  std::uint64_t key_space = 1;   // keys are drawn from 0 .. key_space - 1
  std::uint32_t value_bytes = 0;  // Redis: the size of every value, from which an answer's length follows
  double seconds = 1;
  double warmup_seconds = 0.2;
  std::uint64_t seed = 1;
  std::optional<std::string> pin;
  bool poll = false;  // poll for answers without sleeping, so that the server never has to wake this thread
};

struct TrafficResult {
  std::uint64_t requests = 0;
  std::uint64_t keys = 0;
  std::uint64_t missing = 0;  // among the parsed answers, one in sixteen
  std::uint64_t checked_keys = 0;
  double seconds = 0;
  double p50_us = 0;
  double p99_us = 0;
  double max_us = 0;
};

// Throws std::runtime_error when an answer is wrong or a connection fails.
TrafficResult generate_load(const Traffic& options);

// Writes rows to Redis: keys as 8 little-endian bytes.
void fill_redis(const std::string& host, std::uint16_t port, std::span<const std::uint64_t> keys,
                const std::uint8_t* values, std::size_t width);

}  // namespace cloudedge::cube
