// Everything a data port can be sent, through the whole service: an input cut anywhere gets the answers of the input in
// one piece.
#include "../../../native/cube/service.hpp"

#include <string>
#include <vector>

#include "../../../native/cube/memory_version.hpp"
#include "check.hpp"

using namespace cloudedge::cube;

namespace {

struct World {
  World() {
    const std::vector<std::uint64_t> keys = {1, 2, 300, ~std::uint64_t{0}};
    const std::vector<std::uint8_t> values(keys.size() * 12, 7);
    catalog.add(memory_version("100", keys, values.data(), 12));
    catalog.activate("100");
    shared.vars_page = [] { return std::string("vars\n"); };
  }

  static VersionPtr no_files(const std::string&, const std::string&) { throw std::runtime_error("no files"); }

  Catalog catalog{no_files, [](const VersionPtr&, const std::string& path, const std::string& name) {
                    return no_files(path, name);
                  }};
  Control control{catalog, "data"};
  Shared shared{Limits{.max_body = 2048, .max_keys = 64, .max_connections = 1}, catalog, control, true};
  Counters counters;
  Loop loop{{}, counters};
  Service service{shared, counters, loop};
};

// Feeds the input `step` bytes at a time, as a loop does, and collects the answers.
std::string answers(Service& service, std::span<const std::uint8_t> input, std::size_t step, bool& ended) {
  Connection connection;
  connection.from_loopback = false;
  Buffer out;
  std::size_t begin = 0;
  std::size_t needed = 0;
  ended = false;
  for (std::size_t have = std::min(step, input.size()); !ended; have = std::min(have + step, input.size())) {
    while (begin < have && have - begin >= needed && !ended) {
      const std::vector<std::uint8_t> exact(input.begin() + static_cast<std::ptrdiff_t>(begin),
                                            input.begin() + static_cast<std::ptrdiff_t>(have));
      const Handled handled = service.handle(connection, exact, out);
      if (handled.verdict == Handled::Verdict::more) {
        CHECK(handled.size > exact.size());
        needed = handled.size;
        break;
      }
      needed = 0;
      connection.progress = {};
      CHECK(handled.verdict == Handled::Verdict::drop || (handled.size > 0 && handled.size <= exact.size()));
      begin += handled.size;
      ended = handled.verdict != Handled::Verdict::taken;
    }
    if (have == input.size()) break;
  }
  return {reinterpret_cast<const char*>(out.data()), out.size()};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static World world;
  if (size == 0) return 0;
  world.shared.draining = (data[size - 1] & 1) != 0;
  bool whole_ended;
  const std::string whole = answers(world.service, {data, size}, size, whole_ended);
  bool pieces_ended;
  const std::string pieces = answers(world.service, {data, size}, 1 + data[0] % 13, pieces_ended);
  // "100 Continue" is only said to a client that has not sent its body yet, and a control command is busy or not.
  const auto says = [](std::string_view text, std::string_view words) { return text.find(words) != text.npos; };
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (!says(input, "Control") && !says(whole, "100 Continue") && !says(pieces, "100 Continue")) {
    CHECK(whole_ended == pieces_ended);
    CHECK(whole == pieces);
  }
  return 0;
}
