#pragma once

#include <nanobind/nanobind.h>

namespace cloudedge {

// Calls into other libraries without the interpreter lock.
void bind_unlocked(nanobind::module_& module);

}  // namespace cloudedge
