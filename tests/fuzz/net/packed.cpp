// gzip and zlib bodies: never more than allowed, whatever the input says about itself.
#include "../../../native/cube/inflate.hpp"

#include "check.hpp"

using namespace cloudedge::cube;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const Packing packing : {Packing::gzip, Packing::zlib}) {
    for (const std::size_t limit : {0, 10, 100'000}) {
      Buffer out;
      out.append("before");
      inflate(packing, {data, size}, limit, out);
      CHECK(out.size() <= limit + 6);
    }
  }
  return 0;
}
