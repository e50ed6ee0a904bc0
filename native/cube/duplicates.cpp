#include "duplicates.hpp"

#include <algorithm>
#include <vector>

#include "buckets.hpp"
#include "layout.hpp"
#include "table.hpp"

namespace cloudedge::cube {
namespace {

struct KeyRows {
  const std::vector<std::uint64_t>& keys;
  std::uint64_t key(std::uint32_t row) const { return keys[row]; }
};

std::uint64_t repeated(const std::vector<std::uint64_t>& keys) {
  constexpr std::size_t kAhead = 16;  // prefetch distance in keys
  Buckets buckets(keys.size());
  const KeyRows rows{keys};
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i + kAhead < keys.size()) buckets.prefetch_home(Buckets::hash(keys[i + kAhead]));
    const std::uint64_t hash = Buckets::hash(keys[i]);
    if (buckets.find(hash, keys[i], rows) != nullptr) {
      ++count;
    } else {
      buckets.insert(hash, static_cast<std::uint32_t>(i));
    }
  }
  return count;
}

}  // namespace

std::uint64_t count_duplicates(const std::string& index_file, std::uint64_t keys_at_once) {
  std::uint64_t count = 0;
  const std::uint64_t entries = InputFile(index_file).size() / kEntryBytes;
  // Equal keys have equal hashes, so each pass sees all entries of its keys. The bits used here choose neither bucket
  // nor tag.
  const std::uint64_t passes = entries / keys_at_once + 1;
  std::vector<std::uint64_t> keys;
  keys.reserve(entries / passes + entries / passes / 8);
  for (std::uint64_t pass = 0; pass < passes; ++pass) {
    keys.clear();
    ByteStream file(index_file);
    for (std::uint64_t i = 0; i < entries; ++i) {
      const std::uint64_t key = load_key(file.peek(kEntryBytes));
      file.skip(kEntryBytes);
      if (passes == 1 || (Buckets::hash(key) >> 16 & 0xffff) % passes == pass) keys.push_back(key);
    }
    count += repeated(keys);
  }
  return count;
}

}  // namespace cloudedge::cube
