#include "unlocked.hpp"

#include <cstdint>

namespace nb = nanobind;

namespace cloudedge {

// Paddle's Python binding keeps the interpreter lock while a model runs, which stops every other thread of the process
// for that long. The member function itself is an exported symbol: Python finds its address and the object's, and it
// is called from here without the lock. What it throws derives from std::exception and becomes a RuntimeError.
void bind_unlocked(nb::module_& module) {
  module.def(
      "call_unlocked",
      [](std::uintptr_t function, std::uintptr_t object) {
        using Method = bool (*)(void*);
        nb::gil_scoped_release unlocked;
        return reinterpret_cast<Method>(function)(reinterpret_cast<void*>(object));
      },
      nb::arg("function"), nb::arg("this"));
}

}  // namespace cloudedge
