#pragma once

#include <nanobind/nanobind.h>

namespace cloudedge {

void bind_seqfile(nanobind::module_& m);

}  // namespace cloudedge
