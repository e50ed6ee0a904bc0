// A plain mutating driver for where there is no libFuzzer: g++ with AddressSanitizer and UBSan is enough.
//   target SECONDS SEED CRASH_FILE CORPUS_DIRECTORY
// The input that ends the process is left in CRASH_FILE; given as the only argument, a file is run once.
#include <sanitizer/common_interface_defs.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;
constexpr std::size_t kLargest = 1 << 16;

Input current;
std::string crash_file;

void keep_current() {
  std::ofstream(crash_file, std::ios::binary)
      .write(reinterpret_cast<const char*>(current.data()), static_cast<std::streamsize>(current.size()));
  std::fprintf(stderr, "the input is in %s\n", crash_file.c_str());
}

Input read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Mutator {
 public:
  Mutator(std::uint64_t seed, std::vector<Input> corpus) : random_(seed), corpus_(std::move(corpus)) {}

  Input next() {
    Input input = corpus_[below(corpus_.size())];
    for (std::size_t n = 1 + below(4); n > 0; --n) mutate(input);
    if (input.size() > kLargest) input.resize(kLargest);
    return input;
  }

 private:
  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  void mutate(Input& input) {
    static constexpr std::uint32_t kNumbers[] = {0,    1,    3,     4,          5,          8,         12,        16,
                                                 1024, 1028, 65535, 0x7fffffff, 0x80000000, 0xfffffff0, 0xffffffff};
    const std::size_t at = below(input.size() + 1);
    const std::size_t room = input.size() - at;
    switch (below(7)) {
      case 0:
        if (room > 0) input[at] ^= static_cast<std::uint8_t>(1U << below(8));
        break;
      case 1:
        if (room > 0) input[at] = static_cast<std::uint8_t>(random_());
        break;
      case 2:
        input.resize(at);
        break;
      case 3:
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), below(24), static_cast<std::uint8_t>(random_()));
        break;
      case 4: {
        const auto first = input.begin() + static_cast<std::ptrdiff_t>(at);
        input.erase(first, first + static_cast<std::ptrdiff_t>(std::min(room, below(24))));
        break;
      }
      case 5:
        if (room >= 4) {
          const std::uint32_t number = kNumbers[below(std::size(kNumbers))];
          const bool big_endian = below(2) == 0;
          for (std::size_t i = 0; i < 4; ++i) {
            input[at + i] = static_cast<std::uint8_t>(number >> 8 * (big_endian ? 3 - i : i));
          }
        }
        break;
      default: {
        const Input& other = corpus_[below(corpus_.size())];
        const std::size_t from = below(other.size() + 1);
        const std::size_t count = below(other.size() - from + 1);
        const auto begin = other.begin() + static_cast<std::ptrdiff_t>(from);
        const auto end = begin + static_cast<std::ptrdiff_t>(count);
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), begin, end);
      }
    }
  }

  std::mt19937_64 random_;
  std::vector<Input> corpus_;
};

void run(Input input) {
  current = std::move(input);
  // A copy of exactly this size, so that AddressSanitizer sees the first byte too far.
  const Input exact(current);
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2) {
    crash_file = "/dev/null";
    run(read(argv[1]));
    return 0;
  }
  if (argc != 5) return 2;
  crash_file = argv[3];
  __sanitizer_set_death_callback(keep_current);
  std::signal(SIGABRT, [](int) {
    keep_current();
    std::_Exit(1);
  });
  std::vector<Input> corpus;
  for (const auto& entry : std::filesystem::directory_iterator(argv[4])) corpus.push_back(read(entry.path()));
  for (const Input& each : corpus) run(each);
  Mutator mutator(std::strtoull(argv[2], nullptr, 10), corpus);
  const auto stop = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(argv[1]));
  std::uint64_t runs = 0;
  for (; std::chrono::steady_clock::now() < stop; ++runs) run(mutator.next());
  std::printf("%llu inputs, none of them a problem\n", static_cast<unsigned long long>(runs));
  return 0;
}
