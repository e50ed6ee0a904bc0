#include "quant.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace cloudedge::cube {
namespace {

constexpr int kSteps = 200;           // a step is this fraction of the row's range
constexpr float kNarrowest = 0.16F;   // the smallest remaining share of the range
constexpr double kCodes = 256;

struct Range {
  float min;
  float max;
};

float code_of(float position, double scale) {
  // A row of equal values has no range: every quotient is 0/0, which upstream converts to code 0.
  const double code = std::round(static_cast<double>(position) * scale);
  return code >= 0 ? static_cast<float>(std::min(code, kCodes - 1)) : 0.0F;
}

// Squared error after encoding and decoding like the serving side (which divides by 256, not by 255).
float loss(const float* row, std::size_t dim, Range range) {
  const auto step = static_cast<float>((range.max - range.min) / kCodes);
  float sum = 0;
  for (std::size_t i = 0; i < dim; ++i) {
    const float code = code_of((row[i] - range.min) / (range.max - range.min), kCodes - 1);
    const float error = row[i] - (code * step + range.min);
    sum += error * error;
  }
  return sum;
}

// Moves the lower bound while that helps, otherwise the upper one. As in upstream, a lower bound that helps less than
// the upper one would is moved without being kept.
Range narrowed(const float* row, std::size_t dim) {
  const auto [low, high] = std::minmax_element(row, row + dim);
  Range best{*low, *high};
  Range now = best;
  float best_loss = loss(row, dim, best);
  const float step = (now.max - now.min) / kSteps;
  const float narrowest = kSteps * (1 - kNarrowest) * step;
  // If a step is lost in rounding (1e8, 1e8 + 8), the range never gets there; upstream then loops for ever.
  for (int i = 0; i < kSteps && now.min + narrowest < now.max; ++i) {
    const float from_below = loss(row, dim, {now.min + step, now.max});
    const float from_above = loss(row, dim, {now.min, now.max - step});
    if (from_below < best_loss) {
      now.min += step;
      if (from_below < from_above) {
        best_loss = from_below;
        best.min = now.min;
      }
    } else {
      now.max -= step;
      if (from_above < best_loss) {
        best_loss = from_above;
        best.max = now.max;
      }
    }
  }
  return best;
}

}  // namespace

void quantise(const float* values, std::size_t rows, std::size_t dim, std::uint8_t* out) {
  for (std::size_t r = 0; r < rows; ++r) {
    const float* row = values + r * dim;
    const Range range = narrowed(row, dim);
    std::memcpy(out, &range.min, sizeof(float));
    std::memcpy(out + sizeof(float), &range.max, sizeof(float));
    out += kQuantHead;
    const auto scale = static_cast<float>((range.max - range.min) / (kCodes - 1));
    for (std::size_t i = 0; i < dim; ++i) *out++ = static_cast<std::uint8_t>(code_of((row[i] - range.min) / scale, 1));
  }
}

}  // namespace cloudedge::cube
