// Unpacks gzip (RFC 1952) and zlib (RFC 1950) bodies, which brpc clients may send. Checks the stream's own checksum
// and never writes more than it is allowed to.
#pragma once

#include <cstdint>
#include <span>

#include "buffer.hpp"

namespace cloudedge::cube {

enum class Packing { gzip, zlib };

// Appends the unpacked bytes to `out`. False when the input is damaged, cut off, followed by more, or larger than
// `max_size` once unpacked.
bool inflate(Packing packing, std::span<const std::uint8_t> input, std::size_t max_size, Buffer& out);

}  // namespace cloudedge::cube
