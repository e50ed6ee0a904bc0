// Python binding of cube's files and versions: paths and numpy arrays in and out, the GIL released during the work.
#include "bind_files.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <stdexcept>

#include "builder.hpp"
#include "overlay.hpp"
#include "quant.hpp"
#include "stored.hpp"
#include "versions.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace cloudedge::cube {
namespace {

using Keys = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutBytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<2>>;
using OutFlags = nb::ndarray<nb::numpy, bool, nb::ndim<1>>;

using Lists = std::tuple<std::vector<std::uint32_t>, std::vector<std::uint64_t>, std::uint32_t>;
using Sum = std::pair<std::uint64_t, std::uint64_t>;  // low, high
using Numbers = std::pair<std::uint32_t, std::uint32_t>;  // shard, of
using Path = std::filesystem::path;

std::span<const std::uint64_t> span(const Keys& keys) { return {keys.data(), keys.shape(0)}; }

Lists to_lists(const PartFiles& files) { return {files.data_lengths, files.index_lengths, files.entries}; }

PartFiles from_lists(const Lists& lists) { return {std::get<0>(lists), std::get<1>(lists), std::get<2>(lists)}; }

std::optional<Checksum> from_sum(const std::optional<Sum>& sum) {
  return sum ? std::optional(Checksum{sum->first, sum->second}) : std::nullopt;
}

// nanobind holds no pointers to const; no bound function changes a version.
std::shared_ptr<Version> handle(const VersionPtr& version) { return std::const_pointer_cast<Version>(version); }

template <class T, class Array>
Array new_array(std::initializer_list<std::size_t> shape) {
  std::size_t size = 1;
  for (const std::size_t n : shape) size *= n;
  auto* data = new T[size]();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return Array(data, shape, owner);
}

std::vector<Value> lookup(const Version& version, const Keys& keys) {
  std::vector<Value> values(keys.shape(0));
  version.lookup(span(keys), values);
  return values;
}

// The values of some keys as rows of `width` bytes, zeros for missing keys, and a flag for each key that was found.
std::pair<OutBytes, OutFlags> lookup_rows(const Version& version, const Keys& keys, std::uint32_t width) {
  const std::size_t n = keys.shape(0);
  auto rows = new_array<std::uint8_t, OutBytes>({n, width});
  auto found = new_array<bool, OutFlags>({n});
  nb::gil_scoped_release release;
  const auto values = lookup(version, keys);
  for (std::size_t i = 0; i < n; ++i) {
    found.data()[i] = values[i].found;
    if (!values[i].found) continue;
    if (values[i].size != width) {
      throw std::invalid_argument("key " + std::to_string(keys.data()[i]) + " has a value of " +
                                  std::to_string(values[i].size) + " bytes, not " + std::to_string(width));
    }
    std::memcpy(rows.data() + i * width, values[i].data, width);
  }
  return {rows, found};
}

nb::list lookup_bytes(const Version& version, const Keys& keys) {
  nb::list out;
  for (const Value& value : lookup(version, keys)) {
    out.append(value.found ? nb::object(nb::bytes(value.data, value.size)) : nb::object(nb::none()));
  }
  return out;
}

const StoredVersion& stored(const Version& version) { return dynamic_cast<const StoredVersion&>(version); }

LoadOptions options(bool map, const std::optional<Sum>& checksum, const Numbers& shard) {
  if (shard.second != 0 && shard.first >= shard.second) throw std::invalid_argument("no such shard");
  return {map, from_sum(checksum), {shard.first, shard.second}};
}

void bind_version(nb::module_& m) {
  nb::class_<Version>(m, "Version", "One loaded version of one shard.")
      .def_prop_ro("name", &Version::name)
      .def_prop_ro("rows", &Version::rows)
      .def_prop_ro("memory_bytes", &Version::memory_bytes)
      .def_prop_ro("checksum", [](const Version& self) { return Sum{self.checksum().low, self.checksum().high}; })
      .def_prop_ro(
          "lengths",
          [](const Version& self) {
            const Lengths lengths = stored(self).tally().lengths;
            return std::make_pair(lengths.shortest, lengths.longest);
          },
          "Shortest and longest value; the shortest is above the longest when there are no rows.")
      .def_prop_ro("duplicates", [](const Version& self) { return stored(self).tally().duplicates; })
      .def_prop_ro("long_values", [](const Version& self) { return stored(self).tally().long_values; })
      .def_prop_ro("files", [](const Version& self) { return to_lists(stored(self).files()); })
      .def("lookup_rows", &lookup_rows, "keys"_a, "width"_a)
      .def("lookup_bytes", &lookup_bytes, "keys"_a);

  m.def(
      "load_version",
      [](const Path& directory, const std::string& name, bool map, const std::optional<Sum>& checksum,
         const Numbers& shard) {
        nb::gil_scoped_release release;
        return handle(load(directory.string(), name, options(map, checksum, shard)));
      },
      "directory"_a, "name"_a, "mapped"_a = false, "checksum"_a = nb::none(), "shard"_a = std::make_pair(0U, 0U),
      "Read a part's directory; `shard` is (number, of), (0, 0) takes any key.");

  m.def(
      "load_patch",
      [](const std::shared_ptr<Version>& base, const Path& directory, const std::string& name,
         const std::optional<Sum>& checksum, const Numbers& shard) {
        nb::gil_scoped_release release;
        return handle(load_patch(base, directory.string(), name, options(false, checksum, shard)));
      },
      "base"_a, "directory"_a, "name"_a, "checksum"_a = nb::none(), "shard"_a = std::make_pair(0U, 0U),
      "Read a delta's directory on top of a version.");

  m.def(
      "apply_delta",
      [](const std::shared_ptr<Version>& base, const Keys& keys, const Bytes& values, const Keys& removed,
         const std::string& name, const std::optional<Sum>& base_checksum) {
        if (keys.shape(0) != values.shape(0)) throw std::invalid_argument("keys and values differ in length");
        static constexpr std::uint8_t kNothing = 0;
        const auto width = static_cast<std::uint32_t>(std::min<std::size_t>(values.shape(1), 0xffffffff));
        const DeltaRows rows{span(keys), values.data() != nullptr ? values.data() : &kNothing, width};
        nb::gil_scoped_release release;
        return handle(apply_delta(base, rows, span(removed), name, from_sum(base_checksum)));
      },
      "base"_a, "keys"_a, "values"_a, "removed"_a, "name"_a, "base_checksum"_a = nb::none(),
      "A version with rows put in and taken out, sharing the base's memory.");
}

void bind_versions(nb::module_& m) {
  nb::class_<Versions>(m, "Versions", "Versions loaded side by side, one of them active.")
      .def(nb::init<>())
      .def("active", [](const Versions& self) { return handle(self.active()); })
      .def("find", [](const Versions& self, const std::string& name) { return handle(self.find(name)); }, "name"_a)
      .def("all",
           [](const Versions& self) {
             std::vector<std::shared_ptr<Version>> out;
             for (const VersionPtr& version : self.all()) out.push_back(handle(version));
             return out;
           })
      .def("add", [](Versions& self, const std::shared_ptr<Version>& version) { return self.add(version); },
           "version"_a)
      .def("activate", &Versions::activate, "name"_a)
      .def("remove", &Versions::remove, "name"_a);
}

void bind_builder(nb::module_& m) {
  nb::class_<TableSource>(m, "TableSource", "Rows of a table file, read from front to back.")
      .def(
          "__init__",
          [](TableSource* self, const Path& path, std::uint64_t keys_offset, std::uint64_t values_offset,
             std::uint64_t rows, std::uint32_t width) {
            new (self) TableSource(path.string(), keys_offset, values_offset, rows, width);
          },
          "path"_a, "keys_offset"_a, "values_offset"_a, "rows"_a, "width"_a)
      .def_prop_ro("offset", &TableSource::offset);

  nb::class_<Builder>(m, "Builder", "Writes rows into the parts of one version.")
      .def(
          "__init__",
          [](Builder* self, const std::vector<Path>& directories, const std::vector<Lists>& before,
             std::uint64_t data_file_limit, unsigned threads) {
            if (directories.empty()) throw std::invalid_argument("no directory to write to");
            if (!before.empty() && before.size() != directories.size()) {
              throw std::invalid_argument("as many lists of earlier files as directories are needed");
            }
            if (data_file_limit < kPrefixBytes + kMaxValue || data_file_limit > 0xffffffff) {
              throw std::invalid_argument("a data file's limit is within 1028 and 4294967295 bytes");
            }
            std::vector<std::string> paths;
            for (const Path& each : directories) paths.push_back(each.string());
            std::vector<PartFiles> files;
            for (const Lists& each : before) files.push_back(from_lists(each));
            new (self) Builder(paths, files, data_file_limit, std::max(threads, 1U));
          },
          "directories"_a, "before"_a, "data_file_limit"_a, "threads"_a)
      .def("take", nb::overload_cast<seqfile::Reader&, std::uint64_t>(&Builder::take), "source"_a, "amount"_a,
           nb::call_guard<nb::gil_scoped_release>(), "Take rows; False when the source has ended.")
      .def("take", nb::overload_cast<TableSource&, std::uint64_t>(&Builder::take), "source"_a, "amount"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def(
          "add",
          [](Builder& self, std::uint64_t key, const nb::bytes& value) {
            const auto size = static_cast<std::uint32_t>(std::min<std::size_t>(value.size(), 0xffffffff));
            self.add({key, static_cast<const std::uint8_t*>(value.data()), size, 0}, "a row given by hand");
          },
          "key"_a, "value"_a)
      .def_prop_ro("added", &Builder::added)
      .def("cancel", &Builder::cancel, nb::call_guard<nb::gil_scoped_release>(), "Give up; write nothing any more.")
      .def(
          "finish",
          [](Builder& self) {
            std::vector<BuiltPart> built;
            {
              nb::gil_scoped_release release;
              built = self.finish();
            }
            std::vector<std::tuple<Lists, std::uint64_t, std::uint64_t, Sum>> out;
            for (const BuiltPart& part : built) {
              out.emplace_back(to_lists(part.files), part.added, part.duplicates,
                               Sum{part.checksum.low, part.checksum.high});
            }
            return out;
          },
          "Complete the files; for each part its lists, the entries added, the duplicates among them, and what all "
          "entries add up to.");
}

}  // namespace

void bind_cube_files(nb::module_& m) {
  bind_version(m);
  bind_versions(m);
  bind_builder(m);

  m.def(
      "read_part_files", [](const Path& directory) { return to_lists(read_part_files(directory.string())); },
      "directory"_a, "What data.n and index.n list: data lengths, index lengths, entries.");

  m.def(
      "quantise",
      [](const Floats& values, unsigned threads) {
        const std::size_t rows = values.shape(0);
        const std::size_t dim = values.shape(1);
        const std::size_t width = kQuantHead + dim;
        auto out = new_array<std::uint8_t, OutBytes>({rows, width});
        if (dim == 0) return out;
        nb::gil_scoped_release release;
        constexpr std::size_t kRows = 4096;  // rows that one thread takes at a time
        in_parallel(std::max(threads, 1U), (rows + kRows - 1) / kRows, [&](std::size_t i) {
          const std::size_t first = i * kRows;
          quantise(values.data() + first * dim, std::min(kRows, rows - first), dim, out.data() + first * width);
        });
        return out;
      },
      "values"_a, "threads"_a = 1, "Rows of float32 as 8-bit rows with a range of their own.");
}

}  // namespace cloudedge::cube
