// A server whose versions change while clients read with pins, in one process, for ThreadSanitizer and for a quick look
// at whether memory stays flat. Readers publish which version they may still ask for; older ones are unloaded. Every
// second version is a delta on the one before, whose memory it shares and which is unloaded before it.
//
// usage: stress SWITCHES READERS
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../../native/cube/client.hpp"
#include "../../native/cube/memory_version.hpp"
#include "../../native/cube/overlay.hpp"
#include "../../native/cube/server.hpp"

using namespace cloudedge::cube;

namespace {

constexpr std::size_t kRows = 500;
constexpr std::size_t kWidth = 32;

[[noreturn]] void die(const std::string& why) {
  std::fprintf(stderr, "stress: %s\n", why.c_str());
  std::_Exit(1);
}

constexpr std::size_t kChanged = kRows / 10;  // few enough for an overlay, which is not merged into a table

std::uint8_t mark(int version) { return static_cast<std::uint8_t>(version % 251); }

// What every byte of a row is: a delta has its own first rows and the rest of its base.
std::uint8_t expected(int version, std::size_t row) {
  return mark(version % 2 == 1 && row >= kChanged ? version - 1 : version);
}

VersionPtr make_version(const std::string& name) {
  std::vector<std::uint64_t> keys(kRows);
  for (std::size_t i = 0; i < kRows; ++i) keys[i] = i * 977;
  const std::vector<std::uint8_t> values(kRows * kWidth, mark(std::stoi(name)));
  return memory_version(name, keys, values.data(), kWidth);
}

VersionPtr make_delta(const VersionPtr& base, const std::string& name) {
  std::vector<std::uint64_t> keys(kChanged);
  for (std::size_t i = 0; i < kChanged; ++i) keys[i] = i * 977;
  const std::vector<std::uint8_t> values(kChanged * kWidth, mark(std::stoi(name)));
  return apply_delta(base, {keys, values.data(), kWidth}, {}, name, std::nullopt);
}

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// The control service over HTTP, from yet another thread.
void send_command(std::uint16_t port, const std::string& body) {
  const cloudedge::Descriptor fd = connect_to(resolve("127.0.0.1", port));
  pollfd wait = {fd.get(), POLLOUT, 0};
  ::poll(&wait, 1, 5000);
  const std::string request = "POST /ControlService/cmd HTTP/1.1\r\nConnection: close\r\nContent-Length: " +
                              std::to_string(body.size()) + "\r\n\r\n" + body;
  if (::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) die("cannot send a command");
  wait.events = POLLIN;
  char answer[256];
  while (::poll(&wait, 1, 5000) == 1 && ::recv(fd.get(), answer, sizeof answer, 0) > 0) {
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int switches = argc > 1 ? std::atoi(argv[1]) : 1000;
  const int readers = argc > 2 ? std::atoi(argv[2]) : 32;

  ServerOptions options;
  options.threads = 2;
  Server server(
      options, [](const std::string&, const std::string& name) { return make_version(name); },
      [](const VersionPtr&, const std::string&, const std::string& name) { return make_version(name); });
  server.catalog().add(make_version("0"));
  server.catalog().activate("0");
  server.start();

  std::atomic<int> current = 0;
  std::atomic<bool> stop = false;
  std::vector<std::atomic<int>> holds(static_cast<std::size_t>(readers));
  std::atomic<std::uint64_t> reads = 0;
  ClientOptions client_options;
  client_options.shards = {{{"127.0.0.1", server.port()}}};
  client_options.call.timeout_ms = 60'000;
  Client client(client_options);

  std::vector<std::thread> threads;
  for (int r = 0; r < readers; ++r) {
    threads.emplace_back([&, r] {
      std::vector<std::uint64_t> keys;
      for (std::size_t i = static_cast<std::size_t>(r); i < kRows; i += 7) keys.push_back(i * 977);
      while (!stop) {
        const int wanted = current;
        holds[static_cast<std::size_t>(r)] = wanted;
        const std::string pin = std::to_string(wanted);
        const SeekOutcome outcome = client.seek(keys, pin, std::nullopt);
        const ShardOutcome& shard = outcome.shards.at(0);
        if (!shard.answered) die("reader: " + shard.failures.at(0).outcome);
        if (shard.version != pin || outcome.width != kWidth) die("reader: another version");
        for (std::size_t i = 0; i < keys.size() * kWidth; ++i) {
          if (outcome.rows[i] != expected(wanted, keys[i / kWidth] / 977)) die("reader: a value of another version");
        }
        ++reads;
      }
    });
  }
  threads.emplace_back([&] {
    while (!stop) {
      server.stats();
      server.catalog().versions().all();
      send_command(server.port(), "{\"cmd\":\"status\"}");
      send_command(server.port(), "{\"cmd\":\"bg_load_base\",\"version_path\":\"/1000000\"}");
      send_command(server.port(), "{\"cmd\":\"bg_unload\"}");
    }
  });

  int oldest = 0;
  std::size_t early = 0;
  for (int next = 1; next <= switches; ++next) {
    const std::string name = std::to_string(next);
    server.catalog().add(next % 2 == 0 ? make_version(name) : make_delta(server.catalog().versions().active(), name));
    server.catalog().activate(std::to_string(next));
    current = next;
    int needed = next - 2;  // a reader takes `current` and then says so; two behind is safe from the moment in between
    for (const auto& hold : holds) needed = std::min(needed, hold.load());
    for (; oldest < needed; ++oldest) server.catalog().unload(std::to_string(oldest));
    if (next == switches / 5) early = resident_bytes();
  }
  while (reads < static_cast<std::uint64_t>(readers)) std::this_thread::yield();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  const std::size_t late = resident_bytes();
  server.drain(5000);
  std::printf("%d switches, %llu pinned reads, resident %zu kB after a fifth, %zu kB at the end\n", switches,
              static_cast<unsigned long long>(reads.load()), early / 1024, late / 1024);
  return 0;
}
