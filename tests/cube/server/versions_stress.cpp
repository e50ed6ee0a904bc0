// Readers take the active version and a named one while a writer switches 1,000 times. Built with ThreadSanitizer:
// exits 0 when no reader saw a freed or a wrong version, every version was freed, and no race was found.
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "../../../native/cube/versions.hpp"

using namespace cloudedge::cube;

namespace {

std::atomic<int> alive{0};

class Numbered final : public Version {
 public:
  explicit Numbered(int number) : name_(std::to_string(number)), number_(number) { ++alive; }
  ~Numbered() override {
    number_ = -1;
    --alive;
  }
  const std::string& name() const override { return name_; }
  std::uint64_t rows() const override { return static_cast<std::uint64_t>(number_); }
  cloudedge::Checksum checksum() const override { return {}; }
  std::size_t memory_bytes() const override { return 0; }
  void lookup(std::span<const std::uint64_t>, std::span<Value>) const override {}

 private:
  std::string name_;
  int number_;
};

}  // namespace

int main() {
  constexpr int kSwitches = 1000;
  constexpr int kReaders = 6;
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::atomic<long> reads{0};
  {
    Versions versions;
    versions.add(std::make_shared<Numbered>(0));
    versions.activate("0");
    std::vector<std::jthread> readers;
    for (int i = 0; i < kReaders; ++i) {
      readers.emplace_back([&] {
        VersionPtr kept;
        long count = 0;
        std::uint64_t newest = 0;
        while (!done) {
          const VersionPtr now = versions.active();
          if (now == nullptr || now->rows() < newest) {
            ++wrong;
          } else {
            newest = now->rows();
          }
          const VersionPtr named = versions.find(std::to_string(newest));
          if (named != nullptr && named->rows() != newest) ++wrong;
          if (++count % 64 == 0) kept = now;
          if (kept != nullptr && kept->rows() > newest) ++wrong;
          if (count % 64 == 1 && versions.all().empty()) ++wrong;
          // With more threads than processors, let them change hands here rather than in the middle of a look.
          std::this_thread::yield();
        }
        reads += count;
      });
    }
    for (int i = 1; i <= kSwitches; ++i) {
      if (!versions.add(std::make_shared<Numbered>(i))) ++wrong;
      if (!versions.activate(std::to_string(i))) ++wrong;
      if (!versions.remove(std::to_string(i - 1))) ++wrong;
    }
    done = true;
    readers.clear();
    if (alive != 1) ++wrong;
  }
  std::printf("%ld reads, %d wrong, %d alive\n", reads.load(), wrong.load(), alive.load());
  return wrong == 0 && alive == 0 && reads > 0 ? 0 : 1;
}
