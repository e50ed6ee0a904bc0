#pragma once

#include <nanobind/nanobind.h>

namespace cloudedge::cube {

void bind_cube_net(nanobind::module_& m);

}  // namespace cloudedge::cube
