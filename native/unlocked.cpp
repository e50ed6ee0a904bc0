#include "unlocked.hpp"

#include <cstdint>
#include <memory>
#include <new>

namespace nb = nanobind;
using namespace nb::literals;

namespace cloudedge {

namespace {

// More than any class of one smart pointer needs; excess room is harmless.
constexpr std::size_t kRoom = 64;

template <typename Function>
Function as(std::uintptr_t address) {
  return reinterpret_cast<Function>(address);
}

}  // namespace

// Paddle's Python binding holds the interpreter lock while a predictor is created, cloned or run, which stops every
// other thread of the process for that long. The member functions themselves are exported symbols: Python finds their
// addresses and the objects', and this code calls them without the lock. Their exceptions derive from std::exception
// and become RuntimeError.
void bind_unlocked(nb::module_& module) {
  module.def(
      "call_unlocked",
      [](std::uintptr_t function, std::uintptr_t object) {
        nb::gil_scoped_release unlocked;
        return as<bool (*)(void*)>(function)(as<void*>(object));
      },
      "function"_a, "this"_a);
  // A constructor with one reference argument; the caller owns the object and frees it with `delete`.
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
  // A member function with one pointer argument, null here, that returns a std::unique_ptr; the caller owns its
  // content.
  module.def(
      "clone_unlocked",
      [](std::uintptr_t function, std::uintptr_t object) {
        nb::gil_scoped_release unlocked;
        void* made = nullptr;  // returned in memory; its address is the first argument
        as<void (*)(void**, void*, void*)>(function)(&made, as<void*>(object), nullptr);
        return reinterpret_cast<std::uintptr_t>(made);
      },
      "function"_a, "this"_a);
}

}  // namespace cloudedge
