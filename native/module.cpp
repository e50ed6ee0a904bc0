// The Python module: binds row operations; numpy arrays in and out, the GIL released meanwhile, errors as ValueError.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <utility>

#include "bind_seqfile.hpp"
#include "cube/bind_files.hpp"
#include "cube/bind_net.hpp"
#include "rows.hpp"
#include "unlocked.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Keys = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutKeys = nb::ndarray<std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutBytes = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Indices = nb::ndarray<nb::numpy, std::uint64_t, nb::ndim<1>>;

std::span<const std::uint64_t> span(const Keys& keys) { return {keys.data(), keys.shape(0)}; }

cloudedge::Rows rows(const Keys& keys, const std::vector<Bytes>& columns) {
  cloudedge::Rows out{span(keys), {}};
  for (const Bytes& column : columns) {
    if (column.shape(0) != keys.shape(0)) throw std::invalid_argument("keys and values differ in length");
    out.columns.push_back({column.data(), column.shape(1)});
  }
  return out;
}

void require_transposed(const Bytes& in, const OutBytes& out) {
  if (in.shape(0) != out.shape(1) || in.shape(1) != out.shape(0)) {
    throw std::invalid_argument("rows and planes do not have each other's shape");
  }
}

Indices to_numpy(std::vector<std::uint64_t>&& values) {
  auto* held = new std::vector<std::uint64_t>(std::move(values));
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<std::uint64_t>*>(p); });
  return Indices(held->data(), {held->size()}, owner);
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "cloudedge's compiled half: whatever touches every row or every byte.";

  m.def(
      "checksum",
      [](const Keys& keys, const std::vector<Bytes>& columns) {
        const auto table = rows(keys, columns);
        nb::gil_scoped_release release;
        const auto sum = cloudedge::checksum(table);
        return std::make_pair(sum.low, sum.high);
      },
      "keys"_a, "columns"_a, "Sum of the rows' 128-bit hashes, as two 64-bit lanes.");

  m.def(
      "first_disorder",
      [](const Keys& keys, std::uint64_t before, bool has_before) {
        nb::gil_scoped_release release;
        return cloudedge::first_disorder(span(keys), before, has_before);
      },
      "keys"_a, "before"_a = 0, "has_before"_a = false,
      "Index of the first key that is not above the one before it, or -1.");

  m.def(
      "diff",
      [](const Keys& before, const std::vector<Bytes>& before_columns, const Keys& after,
         const std::vector<Bytes>& after_columns) {
        const auto a = rows(before, before_columns);
        const auto b = rows(after, after_columns);
        cloudedge::Difference found;
        {
          nb::gil_scoped_release release;
          found = cloudedge::diff(a, b);
        }
        return std::make_tuple(to_numpy(std::move(found.added)), to_numpy(std::move(found.changed)),
                               to_numpy(std::move(found.removed)));
      },
      "before_keys"_a, "before_columns"_a, "after_keys"_a, "after_columns"_a,
      "Row numbers (added in after, changed in after, removed from before) between two sorted tables.");

  m.def(
      "to_planes",
      [](const Bytes& rows, OutBytes planes) {
        require_transposed(rows, planes);
        nb::gil_scoped_release release;
        cloudedge::to_planes(rows.data(), rows.shape(0), rows.shape(1), planes.data());
      },
      "rows"_a, "planes"_a, "Write rows of bytes as planes: all first bytes, all second bytes, and so on.");

  m.def(
      "from_planes",
      [](const Bytes& planes, OutBytes rows) {
        require_transposed(planes, rows);
        nb::gil_scoped_release release;
        cloudedge::from_planes(planes.data(), rows.shape(0), rows.shape(1), rows.data());
      },
      "planes"_a, "rows"_a, "Undo to_planes.");

  m.def(
      "merged_size",
      [](const Keys& base, const Keys& keys, const Keys& removed) {
        nb::gil_scoped_release release;
        return cloudedge::merged_size(span(base), span(keys), span(removed));
      },
      "base"_a, "keys"_a, "removed"_a, "Rows that merge() will write.");

  m.def(
      "merge",
      [](const Keys& base, const std::vector<Bytes>& base_columns, const Keys& keys,
         const std::vector<Bytes>& columns, const Keys& removed, std::optional<OutKeys> out_keys,
         const std::vector<OutBytes>& out_columns) {
        const auto a = rows(base, base_columns);
        const auto b = rows(keys, columns);
        const std::size_t size = cloudedge::merged_size(a.keys, b.keys, span(removed));
        std::vector<cloudedge::MutableColumn> out;
        const bool keeps_keys = size == a.size() && removed.shape(0) == 0;
        bool fits = (out_keys ? out_keys->shape(0) == size : keeps_keys) && out_columns.size() == a.columns.size();
        for (std::size_t c = 0; fits && c < out_columns.size(); ++c) {
          fits = out_columns[c].shape(0) == size && out_columns[c].shape(1) == a.columns[c].width;
          out.push_back({out_columns[c].data(), out_columns[c].shape(1)});
        }
        if (!fits) throw std::invalid_argument("the output arrays do not have the merged table's shape");
        nb::gil_scoped_release release;
        cloudedge::merge(a, b, span(removed), out_keys ? out_keys->data() : nullptr, out);
      },
      "base_keys"_a, "base_columns"_a, "keys"_a, "columns"_a, "removed"_a, "out_keys"_a.none(), "out_columns"_a,
      "Write the base with the delta's rows put in and the removed keys taken out; no keys when they stay the same.");

  cloudedge::bind_seqfile(m);
  cloudedge::cube::bind_cube_files(m);
  cloudedge::cube::bind_cube_net(m);
  cloudedge::bind_unlocked(m);
}
