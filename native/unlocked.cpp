#include "unlocked.hpp"

#include <cstdint>
#include <memory>
#include <new>

namespace nb = nanobind;
using namespace nb::literals;

namespace cloudedge {

namespace {

// More than any class of one smart pointer takes; what is too large for its object hurts nobody.
constexpr std::size_t kRoom = 64;

template <typename Function>
Function as(std::uintptr_t address) {
  return reinterpret_cast<Function>(address);
}

}  // namespace

// Paddle's Python binding keeps the interpreter lock while a predictor is made, cloned or run, which stops every other
// thread of the process for that long. The member functions themselves are exported symbols: Python finds their
// addresses and the objects', and they are called from here without the lock. What they throw derives from
// std::exception and becomes a RuntimeError.
void bind_unlocked(nb::module_& module) {
  module.def(
      "call_unlocked",
      [](std::uintptr_t function, std::uintptr_t object) {
        nb::gil_scoped_release unlocked;
        return as<bool (*)(void*)>(function)(as<void*>(object));
      },
      "function"_a, "this"_a);
  // A constructor of one reference; the caller owns the object, to be freed with `delete`.
  module.def(
      "construct_unlocked",
      [](std::uintptr_t constructor, std::uintptr_t from) {
        nb::gil_scoped_release unlocked;
        const auto free = [](void* room) { ::operator delete(room); };
        std::unique_ptr<void, decltype(free)> object(::operator new(kRoom), free);
        as<void (*)(void*, const void*)>(constructor)(object.get(), as<const void*>(from));
        return reinterpret_cast<std::uintptr_t>(object.release());
      },
      "constructor"_a, "argument"_a);
  // A member function of one pointer, null here, that returns a std::unique_ptr; the caller owns what was in it.
  module.def(
      "clone_unlocked",
      [](std::uintptr_t function, std::uintptr_t object) {
        nb::gil_scoped_release unlocked;
        void* made = nullptr;  // returned in memory, which comes first among the arguments
        as<void (*)(void**, void*, void*)>(function)(&made, as<void*>(object), nullptr);
        return reinterpret_cast<std::uintptr_t>(made);
      },
      "function"_a, "this"_a);
}

}  // namespace cloudedge
