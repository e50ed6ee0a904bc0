// A cube server: one shard's versions behind one port, on a number of native threads. Starts, drains and stops; Service
// speaks the protocols, Catalog loads the versions.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "acceptor.hpp"
#include "catalog.hpp"
#include "control.hpp"
#include "loop.hpp"
#include "service.hpp"

namespace cloudedge::cube {

struct ServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: any free one
  unsigned threads = 1;
  std::string data_dir = "data";  // the directory that control commands load from
  bool remote_control = false;    // accept control commands from other hosts
  Limits limits;
  Patience patience;
};

struct ServerStats {
  Snapshot total;
  Snapshot last_minute;  // counters only
  std::uint64_t connections = 0;
  std::uint64_t turned_away = 0;
};

class Server {
 public:
  Server(ServerOptions options, Loader loader, PatchLoader patch_loader);
  ~Server();

  void start();  // throws std::system_error when it cannot listen
  std::uint16_t port() const { return address_.port(); }
  std::string address() const { return address_.text(); }
  Catalog& catalog() { return catalog_; }
  void refuse_control(std::string reason) { control_.refuse(std::move(reason)); }
  ServerStats stats() const;
  bool draining() const { return shared_.draining; }

  // Stops accepting, goes on answering, closes each connection once it rests; returns when all are closed or the time
  // is up. In its second half, requests are answered with "stopping", which sends clients to another replica.
  void drain(std::int64_t within_ms);
  void stop();

 private:
  struct Thread {
    explicit Thread(const Patience& patience) : loop(patience, counters) {}
    Counters counters;
    Loop loop;
    std::thread thread;
  };

  // Totals of the last minute, second by second, for pages that show both.
  class History {
   public:
    void sample(const Snapshot& total);
    Snapshot minute_ago() const;

   private:
    static constexpr std::size_t kSeconds = 60;
    mutable std::mutex mutex_;
    std::array<Snapshot, kSeconds> samples_{};
    std::size_t count_ = 0;
  };

  Snapshot totals() const;
  std::string vars_page() const;
  void keep_history();
  void wait_for_requests();
  void join_all();

  ServerOptions options_;
  Catalog catalog_;
  std::vector<std::unique_ptr<Thread>> threads_;
  Control control_;  // declared after the loops, so that its thread ends before they do
  Shared shared_;
  std::unique_ptr<Acceptor> acceptor_;
  Address address_;
  History history_;
  std::mutex joining_;  // drain() and stop() may run at the same time
  std::mutex mutex_;
  std::condition_variable ended_;
  bool stopping_ = false;
  std::atomic<bool> running_ = false;
  std::thread historian_;
};

}  // namespace cloudedge::cube
