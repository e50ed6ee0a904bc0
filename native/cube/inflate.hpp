// Decompresses gzip (RFC 1952) and zlib (RFC 1950) bodies, which brpc clients may send. Verifies the stream's checksum
// and never writes more than allowed.
#pragma once

#include <cstdint>
#include <span>

#include "buffer.hpp"

namespace cloudedge::cube {

enum class Packing { gzip, zlib };

// Appends the decompressed bytes to `out`. False when the input is damaged, truncated, followed by more bytes, or
// larger than `max_size` when decompressed.
bool inflate(Packing packing, std::span<const std::uint8_t> input, std::size_t max_size, Buffer& out);

}  // namespace cloudedge::cube
