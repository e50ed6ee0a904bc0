// Python binding of cube's server, client and load generator. The GIL is released around everything that waits, and
// the threads that answer requests never take it; only a loader written in Python does, in the thread that loads.
#include "bind_net.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <system_error>
#include <utility>

#include "client.hpp"
#include "client_load.hpp"
#include "loadgen.hpp"
#include "memory_version.hpp"
#include "server.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace cloudedge::cube {
namespace {

using KeyArray = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using RowArray = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutRows = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<2>>;
using OutStates = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

std::span<const std::uint64_t> span(const KeyArray& keys) { return {keys.data(), keys.shape(0)}; }

// A Python object that any thread may release.
std::shared_ptr<nb::object> shared(nb::object object) {
  return {new nb::object(std::move(object)), [](nb::object* held) {
            nb::gil_scoped_acquire gil;
            delete held;
          }};
}

Loader python_loader(nb::object callable) {
  return [held = shared(std::move(callable))](const std::string& path, const std::string& name) -> VersionPtr {
    nb::gil_scoped_acquire gil;
    return nb::cast<std::shared_ptr<Version>>((*held)(path, name));
  };
}

PatchLoader python_patch_loader(nb::object callable) {
  return [held = shared(std::move(callable))](const VersionPtr& base, const std::string& path,
                                              const std::string& name) -> VersionPtr {
    nb::gil_scoped_acquire gil;
    // nanobind holds no pointers to const; no bound function changes a version.
    return nb::cast<std::shared_ptr<Version>>((*held)(std::const_pointer_cast<Version>(base), path, name));
  };
}

[[noreturn]] void raise_os_error(const std::system_error& error) {
  nb::object args = nb::make_tuple(error.code().value(), error.what());
  PyErr_SetObject(PyExc_OSError, args.ptr());
  throw nb::python_error();
}

// A server whose destruction does not wait for threads that wait for the GIL.
class BoundServer {
 public:
  BoundServer(const std::string& host, std::uint16_t port, unsigned threads, const std::string& data_dir,
              bool remote_control, const Limits& limits, const Patience& patience, nb::object loader,
              nb::object patch_loader)
      : server_(std::make_unique<Server>(ServerOptions{host, port, threads, data_dir, remote_control, limits, patience},
                                         python_loader(std::move(loader)),
                                         python_patch_loader(std::move(patch_loader)))) {}
  ~BoundServer() {
    nb::gil_scoped_release release;
    server_.reset();
  }
  Server& get() { return *server_; }

 private:
  std::unique_ptr<Server> server_;
};

nb::dict stats(BoundServer& self) {
  static constexpr std::pair<const char*, Counter> kNames[] = {
      {"requests", kRequests},      {"errors", kErrors},         {"keys", kKeys},
      {"missing_keys", kMissing},   {"too_long_values", kTooLong}, {"bytes_received", kBytesIn},
      {"bytes_sent", kBytesOut},    {"connections_opened", kOpened}, {"connections_timed_out", kTimedOut},
      {"connections_broken", kBroken}};
  const ServerStats now = self.get().stats();
  nb::dict out;
  for (const auto& [name, counter] : kNames) out[name] = now.total[counter];
  out["connections"] = now.connections;
  out["connections_turned_away"] = now.turned_away;
  out["latency_seconds_sum"] = static_cast<double>(now.total[kLatencyNs]) / 1e9;
  nb::list buckets;
  for (const std::uint64_t count : now.total.latency) buckets.append(count);
  out["latency_buckets"] = buckets;  // up to 1, 2, 4, ... microseconds; the last one is unbounded
  out["last_load_ms"] = self.get().catalog().last_load_ms();
  return out;
}

void bind_server(nb::module_& m) {
  nb::class_<BoundServer>(m, "CubeServer", "One shard behind one port, on native threads.")
      .def(
          "__init__",
          [](BoundServer* self, nb::object loader, nb::object patch_loader, const std::string& host,
             std::uint16_t port, unsigned threads, const std::string& data_dir, bool remote_control,
             std::size_t max_body, std::size_t max_keys, std::size_t max_connections, std::int64_t idle_ms,
             std::int64_t message_ms, std::int64_t write_ms, std::size_t held_bytes, std::int64_t spin_us) {
            const Limits limits{max_body, max_keys, max_connections};
            const Patience patience{.idle_ms = idle_ms,
                                    .message_ms = message_ms,
                                    .write_ms = write_ms,
                                    .held_bytes = held_bytes,
                                    .spin_us = spin_us};
            new (self) BoundServer(host, port, threads, data_dir, remote_control, limits, patience,
                                   std::move(loader), std::move(patch_loader));
          },
          nb::kw_only(), "loader"_a, "patch_loader"_a, "host"_a, "port"_a, "threads"_a, "data_dir"_a,
          "remote_control"_a, "max_body"_a, "max_keys"_a, "max_connections"_a, "idle_ms"_a, "message_ms"_a,
          "write_ms"_a, "held_bytes"_a, "spin_us"_a)
      .def("start",
           [](BoundServer& self) {
             try {
               self.get().start();
             } catch (const std::system_error& error) {
               raise_os_error(error);
             }
           })
      .def(
          "refuse_control",
          [](BoundServer& self, const std::string& reason) { self.get().refuse_control(reason); }, "reason"_a)
      .def_prop_ro("port", [](BoundServer& self) { return self.get().port(); })
      .def_prop_ro("draining", [](BoundServer& self) { return self.get().draining(); })
      .def(
          "add", [](BoundServer& self, const std::shared_ptr<Version>& version) { self.get().catalog().add(version); },
          "version"_a)
      .def(
          "load",
          [](BoundServer& self, const std::string& path, const std::string& name) {
            nb::gil_scoped_release release;
            self.get().catalog().load(path, name);
          },
          "path"_a, "name"_a)
      .def(
          "patch",
          [](BoundServer& self, const std::string& base, const std::string& path, const std::string& name) {
            nb::gil_scoped_release release;
            self.get().catalog().patch(base, path, name);
          },
          "base"_a, "path"_a, "name"_a)
      .def(
          "activate", [](BoundServer& self, const std::string& name) { self.get().catalog().activate(name); }, "name"_a)
      .def("deactivate", [](BoundServer& self) { self.get().catalog().deactivate(); })
      .def(
          "unload",
          [](BoundServer& self, const std::string& name) {
            nb::gil_scoped_release release;
            self.get().catalog().unload(name);
          },
          "name"_a)
      .def("active",
           [](BoundServer& self) -> std::optional<std::string> {
             const VersionPtr active = self.get().catalog().versions().active();
             return active ? std::optional(active->name()) : std::nullopt;
           })
      .def("versions",
           [](BoundServer& self) {
             nb::list out;
             for (const VersionPtr& version : self.get().catalog().versions().all()) {
               const Checksum sum = version->checksum();
               out.append(nb::make_tuple(version->name(), version->rows(), version->memory_bytes(),
                                         std::make_pair(sum.low, sum.high)));
             }
             return out;
           })
      .def("stats", &stats)
      .def(
          "drain",
          [](BoundServer& self, std::int64_t within_ms) {
            nb::gil_scoped_release release;
            self.get().drain(within_ms);
          },
          "within_ms"_a)
      .def("stop", [](BoundServer& self) {
        nb::gil_scoped_release release;
        self.get().stop();
      });
}

nb::tuple seek(Client& self, const KeyArray& keys, const std::optional<std::string>& pin,
               const std::optional<std::size_t>& width, const std::optional<std::int64_t>& timeout_ms) {
  SeekOutcome outcome;
  {
    nb::gil_scoped_release release;
    outcome = self.seek(span(keys), pin, width, timeout_ms);
  }
  nb::list shards;
  for (const ShardOutcome& shard : outcome.shards) {
    nb::list failures;
    for (const Attempt& attempt : shard.failures) {
      failures.append(nb::make_tuple(attempt.replica, attempt.outcome, attempt.code));
    }
    shards.append(nb::make_tuple(shard.number, shard.keys, shard.answered, shard.version, failures));
  }
  if (outcome.odd_key) {
    return nb::make_tuple(nb::none(), nb::none(), shards,
                          nb::make_tuple(*outcome.odd_key, outcome.odd_width, outcome.width));
  }
  std::uint8_t* const rows = outcome.rows.release();
  auto* const states = reinterpret_cast<std::uint8_t*>(outcome.states.release());
  nb::capsule rows_owner(rows, [](void* p) noexcept { delete[] static_cast<std::uint8_t*>(p); });
  nb::capsule states_owner(states, [](void* p) noexcept { delete[] static_cast<std::uint8_t*>(p); });
  return nb::make_tuple(OutRows(rows, {keys.shape(0), outcome.width}, rows_owner),
                        OutStates(states, {keys.shape(0)}, states_owner), shards, nb::none());
}

void bind_client(nb::module_& m) {
  nb::class_<Client>(m, "CubeClient", "Reads rows from all shards of a table.")
      .def(
          "__init__",
          [](Client* self, const std::vector<std::vector<std::pair<std::string, std::uint16_t>>>& shards,
             std::int64_t timeout_ms, std::int64_t connect_timeout_ms, unsigned retry, std::int64_t backup_ms,
             bool least_loaded, std::size_t max_idle) {
            ClientOptions options;
            for (const auto& replicas : shards) {
              auto& endpoints = options.shards.emplace_back();
              for (const auto& [host, port] : replicas) endpoints.push_back({host, port});
            }
            options.max_idle = max_idle;
            options.call.timeout_ms = timeout_ms;
            options.call.connect_timeout_ms = connect_timeout_ms;
            options.call.retry = retry;
            options.call.backup_ms = backup_ms;
            options.call.balance = least_loaded ? Balance::least_loaded : Balance::round_robin;
            new (self) Client(options);
          },
          nb::kw_only(), "shards"_a, "timeout_ms"_a, "connect_timeout_ms"_a, "retry"_a, "backup_ms"_a,
          "least_loaded"_a, "max_idle"_a)
      .def("seek", &seek, "keys"_a, "pin"_a.none(), "width"_a.none(), "timeout_ms"_a = nb::none(),
           "Rows, their states (0 missing, 1 found, 2 failed), each shard's outcome, and a value of odd width.")
      .def(
          "time_seek",
          [](Client& self, const KeyArray& keys, unsigned rounds) {
            nb::gil_scoped_release release;
            const std::int64_t start = now_ns();
            for (unsigned i = 0; i < rounds; ++i) self.seek(span(keys), std::nullopt, std::nullopt);
            return static_cast<double>(now_ns() - start) / 1e9 / rounds;
          },
          "keys"_a, "rounds"_a, "Seconds that one seek takes without Python, for benchmarks.")
      .def(
          "generate_calls",
          [](Client& self, unsigned callers, unsigned batch, std::uint64_t key_space, double seconds,
             double warmup_seconds, std::uint64_t seed, const std::optional<std::string>& pin) {
            CallsResult result;
            {
              nb::gil_scoped_release release;
              result = generate_calls(self, {callers, batch, key_space, seconds, warmup_seconds, seed, pin});
            }
            nb::dict out;
            out["calls"] = result.calls;
            out["keys"] = result.keys;
            out["missing"] = result.missing;
            out["failed"] = result.failed;
            out["mixed"] = result.mixed;
            out["failure"] = result.failure;
            out["seconds"] = result.seconds;
            out["p50_us"] = result.p50_us;
            out["p99_us"] = result.p99_us;
            out["max_us"] = result.max_us;
            return out;
          },
          nb::kw_only(), "callers"_a, "batch"_a, "key_space"_a, "seconds"_a, "warmup_seconds"_a, "seed"_a,
          "pin"_a.none(), "Seek batches of keys from several threads and time every call.");
}

void bind_load(nb::module_& m) {
  m.def(
      "generate_load",
      [](const std::string& peer, const std::string& host, std::uint16_t port, unsigned connections, unsigned batch,
         std::uint64_t key_space, std::uint32_t value_bytes, double seconds, double warmup_seconds, std::uint64_t seed,
         const std::optional<std::string>& pin, bool poll) {
        const Traffic options{.peer = peer == "redis" ? Peer::redis : peer == "echo" ? Peer::echo : Peer::cube,
                              .host = host,
                              .port = port,
                              .connections = connections,
                              .batch = batch,
                              .key_space = key_space,
                              .value_bytes = value_bytes,
                              .seconds = seconds,
                              .warmup_seconds = warmup_seconds,
                              .seed = seed,
                              .pin = pin,
                              .poll = poll};
        TrafficResult result;
        {
          nb::gil_scoped_release release;
          result = generate_load(options);
        }
        nb::dict out;
        out["requests"] = result.requests;
        out["keys"] = result.keys;
        out["seconds"] = result.seconds;
        out["p50_us"] = result.p50_us;
        out["p99_us"] = result.p99_us;
        out["max_us"] = result.max_us;
        out["missing_share"] = result.checked_keys == 0 ? 0.0
                                                        : static_cast<double>(result.missing) /
                                                              static_cast<double>(result.checked_keys);
        return out;
      },
      nb::kw_only(), "peer"_a, "host"_a, "port"_a, "connections"_a, "batch"_a, "key_space"_a, "value_bytes"_a,
      "seconds"_a, "warmup_seconds"_a, "seed"_a, "pin"_a.none(), "poll"_a = false, "Load a cube, redis or echo server and time it.");

  m.def(
      "fill_redis",
      [](const std::string& host, std::uint16_t port, const KeyArray& keys, const RowArray& values) {
        if (keys.shape(0) != values.shape(0)) throw std::invalid_argument("keys and values differ in length");
        nb::gil_scoped_release release;
        fill_redis(host, port, span(keys), values.data(), values.shape(1));
      },
      "host"_a, "port"_a, "keys"_a, "values"_a, "Put rows into Redis, under their keys as 8 bytes.");
}

void bind_memory_version(nb::module_& m) {
  m.def(
      "memory_version",
      [](const std::string& name, const KeyArray& keys, const RowArray& values) -> std::shared_ptr<Version> {
        if (keys.shape(0) != values.shape(0)) throw std::invalid_argument("keys and values differ in length");
        nb::gil_scoped_release release;
        return memory_version(name, span(keys), values.data(), static_cast<std::uint32_t>(values.shape(1)));
      },
      "name"_a, "keys"_a, "values"_a, "A version of rows in memory, for tests.");
}

}  // namespace

void bind_cube_net(nb::module_& m) {
  nb::exception<NotLoaded>(m, "NotLoaded");
  nb::exception<NameTaken>(m, "NameTaken");
  bind_memory_version(m);
  bind_server(m);
  bind_client(m);
  bind_load(m);
}

}  // namespace cloudedge::cube
