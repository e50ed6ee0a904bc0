// How many entries of an index file have a key that an earlier entry has.
#pragma once

#include <cstdint>
#include <string>

namespace cloudedge::cube {

// Reads the file as often as it takes to keep at most `keys_at_once` keys in memory.
std::uint64_t count_duplicates(const std::string& index_file, std::uint64_t keys_at_once);

}  // namespace cloudedge::cube
