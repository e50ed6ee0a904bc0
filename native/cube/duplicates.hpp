// Counts the entries of an index file that repeat an earlier entry's key.
#pragma once

#include <cstdint>
#include <string>

namespace cloudedge::cube {

// Reads the file several times if needed, to keep at most `keys_at_once` keys in memory.
std::uint64_t count_duplicates(const std::string& index_file, std::uint64_t keys_at_once);

}  // namespace cloudedge::cube
