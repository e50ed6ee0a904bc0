// A small coverage-guided fuzzer for compilers without libFuzzer: g++ -fsanitize-coverage=trace-pc calls back at every
// edge, inputs that reach new ones join the corpus, and mutations of the corpus are tried until the time is up.
// With clang, link -fsanitize=fuzzer instead of this file; the targets are the same.
//
// usage: TARGET SECONDS SEED CORPUS_DIR [FINDINGS_DIR]; an input that dies is written to FINDINGS_DIR/crash-SEED, new
// inputs that reach more are written there too.
#include <sanitizer/common_interface_defs.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;

constexpr std::size_t kMaxInput = 4096;
std::uint8_t seen[1 << 16];
bool reached_new = false;

Input current;
std::string crash_path;

void write(const std::string& path, const Input& input) {
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(input.data()),
                                              static_cast<std::streamsize>(input.size()));
}

void save_crash() {
  write(crash_path, current);
  std::fprintf(stderr, "input saved to %s\n", crash_path.c_str());
}

bool run(const Input& input) {
  current = input;
  reached_new = false;
  // A copy of exactly its size, so that reading one byte too far is seen.
  const Input exact(input);
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  return reached_new;
}

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  Input mutate(const std::vector<Input>& corpus) {
    Input out = corpus[below(corpus.size())];
    for (std::size_t rounds = 1 + below(5); rounds > 0; --rounds) change(out, corpus);
    if (out.size() > kMaxInput) out.resize(kMaxInput);
    return out;
  }

 private:
  void change(Input& out, const std::vector<Input>& corpus) {
    const auto at = [&](std::size_t i) { return out.begin() + static_cast<std::ptrdiff_t>(i); };
    const std::size_t place = below(out.size() + 1);
    switch (below(9)) {
      case 0:
        if (!out.empty()) out[below(out.size())] ^= static_cast<std::uint8_t>(1 << below(8));
        return;
      case 1:
        if (!out.empty()) out[below(out.size())] = static_cast<std::uint8_t>(random_());
        return;
      case 2: {
        constexpr std::uint8_t kEdges[] = {0, 1, 0x7f, 0x80, 0xff, '"', '{', '[', '\r', '\n', '0', '9', ':', ' '};
        out.insert(at(place), 1 + below(4), kEdges[below(sizeof kEdges)]);
        return;
      }
      case 3: {
        const std::size_t end = place + below(out.size() - place + 1);
        out.erase(at(place), at(end));
        return;
      }
      case 4: {
        const Input copy(at(place), at(place + below(out.size() - place + 1)));
        const std::size_t to = below(out.size() + 1);
        out.insert(at(to), copy.begin(), copy.end());
        return;
      }
      case 5: {
        const Input& other = corpus[below(corpus.size())];
        const std::size_t from = below(other.size() + 1);
        const auto first = other.begin() + static_cast<std::ptrdiff_t>(from);
        out.insert(at(place), first, first + static_cast<std::ptrdiff_t>(below(other.size() - from + 1)));
        return;
      }
      case 6:
        out.resize(place);
        return;
      case 7:  // a number in four bytes, as lengths are
        if (out.size() >= 4) {
          const auto value = static_cast<std::uint32_t>(below(2) != 0 ? below(300) : random_());
          const std::size_t i = below(out.size() - 3);
          for (std::size_t b = 0; b < 4; ++b) out[i + b] = static_cast<std::uint8_t>(value >> 8 * (3 - b));
        }
        return;
      default: {
        const std::string number = std::to_string(below(2) != 0 ? below(70'000'000) : random_());
        out.insert(at(place), number.begin(), number.end());
        return;
      }
    }
  }

  std::mt19937_64 random_;
};

}  // namespace

extern "C" const char* __asan_default_options() { return "handle_abort=1"; }  // so that CHECK saves its input too

extern "C" __attribute__((no_sanitize("address", "undefined"))) void __sanitizer_cov_trace_pc() {
  const auto address = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  std::uint8_t& mark = seen[(address ^ address >> 16) & 0xffff];
  if (mark == 0) {
    mark = 1;
    reached_new = true;
  }
}

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s SECONDS SEED CORPUS_DIR [FINDINGS_DIR]\n", argv[0]);
    return 2;
  }
  const double seconds = std::atof(argv[1]);
  const std::string seed = argv[2];
  const std::string findings = argc > 4 ? argv[4] : "";
  crash_path = (findings.empty() ? "" : findings + "/") + ("crash-" + seed);
  __sanitizer_set_death_callback(save_crash);

  std::vector<Input> corpus = {{}};
  for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[3])) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  for (const Input& input : corpus) run(input);
  const std::size_t given = corpus.size();

  Mutator mutator(std::strtoull(seed.c_str(), nullptr, 10));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::uint64_t runs = 0;
  while ((runs % 256 != 0 || std::chrono::steady_clock::now() < end) && runs < UINT64_MAX) {
    ++runs;
    Input input = mutator.mutate(corpus);
    if (!run(input)) continue;
    if (!findings.empty()) write(findings + "/found-" + seed + "-" + std::to_string(corpus.size()), input);
    corpus.push_back(std::move(input));
  }
  std::printf("%llu runs, %zu inputs given, %zu found, no failure\n", static_cast<unsigned long long>(runs), given,
              corpus.size() - given);
  return 0;
}
