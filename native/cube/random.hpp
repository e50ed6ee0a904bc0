// Pseudo-random numbers, the same for the same seed.
#pragma once

#include <cstdint>

namespace cloudedge::cube {

inline std::uint64_t next_random(std::uint64_t& state) {  // splitmix64
  state += 0x9e3779b97f4a7c15;
  std::uint64_t value = state;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

}  // namespace cloudedge::cube
