// Python binding of SequenceFiles, and of the error that all file access throws.
#include "bind_seqfile.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "seqfile.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace cloudedge {
namespace {

using Keys = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Values = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T, std::size_t N>
using NumpyArray = nb::ndarray<nb::numpy, T, nb::ndim<N>>;

const char* kind_name(FileError::Kind kind) {
  switch (kind) {
    case FileError::Kind::kDamaged: return "damaged";
    case FileError::Kind::kRefused: return "refused";
    case FileError::Kind::kUnreadable: return "unreadable";
    case FileError::Kind::kUnwritable: return "unwritable";
  }
  return "damaged";
}

void bind_file_error(nb::module_& m) {
  static PyObject* type = PyErr_NewExceptionWithDoc(
      "cloudedge._core.FileError",
      "A file could not be used; args are (kind, path, offset or None, what), kind being damaged, refused, "
      "unreadable or unwritable.",
      nullptr, nullptr);
  m.attr("FileError") = nb::borrow(type);
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const FileError& error) {
      const nb::object path = nb::steal(PyUnicode_DecodeFSDefault(error.path().c_str()));
      const nb::object offset = error.offset() < 0 ? nb::none() : nb::cast(error.offset());
      const nb::tuple facts = nb::make_tuple(kind_name(error.kind()), path, offset, error.what());
      PyErr_SetObject(type, facts.ptr());
    }
  });
}

// A numpy array that owns its pages.
template <class T, std::size_t N>
NumpyArray<T, N> to_numpy(Pages&& pages, std::initializer_list<std::size_t> shape) {
  auto* held = new Pages(std::move(pages));
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<Pages*>(p); });
  static T nothing{};  // numpy needs an address even for an empty array
  T* data = held->data() != nullptr ? reinterpret_cast<T*>(held->data()) : &nothing;
  return NumpyArray<T, N>(data, shape, owner);
}

std::uint32_t record_size(std::size_t size) {
  if (size <= seqfile::kMaxValue) return static_cast<std::uint32_t>(size);
  throw std::invalid_argument("a value of " + std::to_string(size) + " bytes; a record holds at most 67108860");
}

seqfile::Damage damage(bool skip) { return skip ? seqfile::Damage::kSkip : seqfile::Damage::kRefuse; }

nb::list read_batch(seqfile::Reader& reader, std::size_t count) {
  nb::list batch;
  seqfile::Record record;
  while (count-- > 0 && reader.next(record)) {
    batch.append(nb::make_tuple(record.key, nb::bytes(record.value, record.size)));
  }
  return batch;
}

}  // namespace

void bind_seqfile(nb::module_& m) {
  bind_file_error(m);

  nb::class_<seqfile::Reader>(m, "SequenceReader", "A SequenceFile read from front to back.")
      .def(
          "__init__",
          [](seqfile::Reader* self, const std::filesystem::path& path, bool skip_damage) {
            new (self) seqfile::Reader(path.string(), damage(skip_damage));
          },
          "path"_a, "skip_damage"_a = false)
      .def("batch", &read_batch, "count"_a, "Up to `count` records as (key, value); an empty list at the end.")
      .def_prop_ro("size", &seqfile::Reader::size)
      .def_prop_ro("offset", &seqfile::Reader::offset)
      .def_prop_ro("skipped_bytes", &seqfile::Reader::skipped_bytes)
      .def_prop_ro("skipped_places", &seqfile::Reader::skipped_places);

  nb::class_<seqfile::Writer>(m, "SequenceWriter", "A new SequenceFile.")
      .def(
          "__init__",
          [](seqfile::Writer* self, const std::filesystem::path& path, const nb::bytes& sync) {
            seqfile::Sync mark;
            if (sync.size() != mark.size()) throw std::invalid_argument("a sync marker has 16 bytes");
            std::copy_n(static_cast<const std::uint8_t*>(sync.data()), mark.size(), mark.begin());
            new (self) seqfile::Writer(path.string(), mark);
          },
          "path"_a, "sync"_a)
      .def(
          "append",
          [](seqfile::Writer& self, std::uint64_t key, const nb::bytes& value) {
            self.append(key, static_cast<const std::uint8_t*>(value.data()), record_size(value.size()));
          },
          "key"_a, "value"_a)
      .def(
          "append_rows",
          [](seqfile::Writer& self, const Keys& keys, const Values& values) {
            if (keys.shape(0) != values.shape(0)) throw std::invalid_argument("keys and values differ in length");
            const std::uint32_t width = record_size(values.shape(1));
            nb::gil_scoped_release release;
            for (std::size_t i = 0; i < keys.shape(0); ++i) {
              self.append(keys.data()[i], values.data() + i * width, width);
            }
          },
          "keys"_a, "values"_a)
      .def("finish", &seqfile::Writer::finish, nb::call_guard<nb::gil_scoped_release>());

  m.def(
      "read_sequence_table",
      [](const std::filesystem::path& path, bool skip_damage) {
        seqfile::TableRows table;
        {
          nb::gil_scoped_release release;
          table = seqfile::read_table(path.string(), damage(skip_damage));
        }
        const std::size_t rows = table.rows;
        return std::make_tuple(to_numpy<std::uint64_t, 1>(std::move(table.keys), {rows}),
                               to_numpy<std::uint8_t, 2>(std::move(table.values), {rows, table.width}),
                               table.skipped_bytes);
      },
      "path"_a, "skip_damage"_a = false, "Keys, values (one width) and skipped bytes of a whole SequenceFile.");
}

}  // namespace cloudedge
