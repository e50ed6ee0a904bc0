// Any bytes as a part's files: loaded into memory, mapped, and as a delta on a fixed base. What loads must be the same
// rows either way, all of them found again, and nothing outside the files may be touched.
//
// Input: six times u16 length and content, for index.n, data.n, index.0, data.0, index.1, data.1. A file of length
// ffff is absent.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../../../native/cube/overlay.hpp"
#include "../../../native/cube/stored.hpp"
#include "scratch.hpp"

using namespace cloudedge;
using namespace cloudedge::cube;

namespace {

void write_files(const fuzz::Scratch& scratch, fuzz::Bytes input) {
  for (const char* name : {"index.n", "data.n", "index.0", "data.0", "index.1", "data.1"}) {
    std::uint16_t length = 0xffff;
    if (input.size() >= sizeof length) {
      std::memcpy(&length, input.data(), sizeof length);
      input = input.subspan(sizeof length);
    }
    if (length == 0xffff) {
      ::unlink(scratch.path(name).c_str());
      continue;
    }
    const std::size_t size = std::min<std::size_t>(length, input.size());
    scratch.write(name, input.first(size));
    input = input.subspan(size);
  }
}

template <class Load>
StoredPtr attempt(Load load) {
  try {
    return load();
  } catch (const FileError& error) {
    fuzz::require(!error.path().empty() && !std::string(error.what()).empty());
    return nullptr;
  }
}

void use(const StoredVersion& version) {
  std::vector<std::uint64_t> keys{0, 1, ~std::uint64_t{0}};
  Checksum sum;
  std::uint64_t rows = 0;
  version.for_each([&](std::uint64_t key, const Value& value) {
    keys.push_back(key);
    sum += row_checksum(key, value);
    ++rows;
  });
  fuzz::require(rows == version.rows() && sum == version.checksum());
  std::vector<Value> found(keys.size());
  version.lookup(keys, found);
  Checksum again;
  for (std::size_t i = 3; i < keys.size(); ++i) {
    fuzz::require(found[i].found && found[i].size <= kMaxValue);
    again += row_checksum(keys[i], found[i]);
  }
  fuzz::require(again == sum);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Scratch scratch;
  static const StoredPtr base = [] {
    const fuzz::Scratch files;
    PartFiles lists{{12}, {16}, 1};
    write_part_files(files.path(), lists);
    const std::uint8_t entry[16] = {7};
    const std::uint8_t record[12] = {12};
    files.write("index.0", entry);
    files.write("data.0", record);
    return load(files.path(), "base", {});
  }();

  write_files(scratch, {data, size});
  LoadOptions options;
  const auto memory = attempt([&] { return load(scratch.path(), "memory", options); });
  options.map = true;
  const auto mapped = attempt([&] { return load(scratch.path(), "mapped", options); });
  fuzz::require((memory == nullptr) == (mapped == nullptr));
  if (memory != nullptr) {
    use(*memory);
    use(*mapped);
    fuzz::require(memory->checksum() == mapped->checksum() && memory->rows() == mapped->rows());
    fuzz::require(memory->tally().duplicates == mapped->tally().duplicates);
    fuzz::require(memory->tally().long_values == mapped->tally().long_values);
  }
  const auto patched = attempt([&] { return load_patch(base, scratch.path(), "patched", {}); });
  if (patched != nullptr) use(*patched);
  return 0;
}
