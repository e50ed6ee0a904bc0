// Quantises rows of float32 to 8-bit codes between each row's minimum and maximum: min f32, max f32, a byte per
// element.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cloudedge::cube {

constexpr std::size_t kQuantHead = 2 * sizeof(float);

// Encodes `rows` rows of `dim` floats; `out` has room for rows * (8 + dim) bytes. The range of each row is narrowed
// step by step while that lowers the squared error, as upstream's seq_generator does, with the same arithmetic.
void quantise(const float* values, std::size_t rows, std::size_t dim, std::uint8_t* out);

}  // namespace cloudedge::cube
