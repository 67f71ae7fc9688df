// SPDX-License-Identifier: Apache-2.0
// world.hpp: worlds, teams and symmetric arrays of Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "arrays.hpp"
#include "shoal/world.hpp"

namespace shoal::python {

/// Keeps the memory of a world's heap mapped while arrays of it live, also after the world is
/// closed.
std::shared_ptr<void> heap_keeper(const Team& team);

/// As output, for memory of the heap behind `keeper`.
nb::object heap_output(Tensor tensor, const std::shared_ptr<void>& keeper,
                       std::uintptr_t stream = 0);

/// An array at the same place of every PE's heap. Not released by the garbage collector, since
/// release is collective.
struct SymmetricArray {
  World world;
  Tensor local;
  std::size_t offset = 0;
};

/// Throws Error{closed} where the array was freed or its world closed.
void check_alive(const SymmetricArray& array);

/// A SymmetricArray as it lies on one PE, or some of its elements.
struct RemoteArray {
  Pe pe = 0;
  std::size_t offset = 0;  ///< of the first element, in the heap
  std::size_t count = 0;   ///< elements
  DataType dtype = DataType::none;
};

void bind_world(nb::module_& module);
void bind_remote(nb::class_<World>& world);
void bind_team(nb::module_& module);

}  // namespace shoal::python
