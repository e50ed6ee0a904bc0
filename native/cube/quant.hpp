// Rows of float32 as 8-bit codes between a minimum and a maximum of their own: min f32, max f32, one byte per element.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cloudedge::cube {

constexpr std::size_t kQuantHead = 2 * sizeof(float);

// Encodes `rows` rows of `dim` floats; `out` has room for rows * (8 + dim) bytes. The range of each row is narrowed
// step by step while that lowers the squared error, as upstream's seq_generator does, with the same arithmetic.
void quantise(const float* values, std::size_t rows, std::size_t dim, std::uint8_t* out);

}  // namespace cloudedge::cube
