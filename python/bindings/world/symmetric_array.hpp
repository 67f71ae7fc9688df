// SPDX-License-Identifier: Apache-2.0
// world/symmetric_array.hpp: arrays in the symmetric heap, and their copies on other PEs.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../arrays/arrays.hpp"
#include "shoal/world.hpp"

namespace shoal::python {

/// Keeps a world's heap mapped while arrays of it live, also after the world is closed.
std::shared_ptr<void> heap_keeper(const Team& team);

/// `tensor`, in memory of the heap behind `keeper`, which it keeps mapped.
Tensor keep_heap(Tensor tensor, const std::shared_ptr<void>& keeper);

/// An array at the same offset of every PE's heap. The garbage collector never frees it, because
/// freeing is collective.
struct SymmetricArray {
  World world;
  Tensor local;
  const Library* library = nullptr;  ///< of `local` in Python
  std::size_t offset = 0;
  bool freed = false;
};

/// World.zeros. Collective. Throws Error{invalid_argument} for a dtype or shape that cannot be,
/// Error{exhausted} where the heap is too small.
SymmetricArray zeros(const World& world, nb::handle given, nb::handle dtype, nb::handle like);

/// Throws Error{closed} where the array was freed, its world is closed, or this process is a fork
/// of the PE.
void check_alive(const SymmetricArray& array);

/// An argument that must be a SymmetricArray. Throws Error{invalid_argument}, naming the call and
/// the argument, or as check_alive.
const SymmetricArray& symmetric_from(const char* call, const char* name, nb::handle value);

/// Elements of a SymmetricArray on one PE.
struct RemoteArray {
  Pe pe = 0;
  std::size_t offset = 0;  ///< of the first element, in the heap
  std::size_t count = 0;   ///< elements
  DataType dtype = DataType::none;
};

void bind_symmetric_arrays(nb::module_& module);

}  // namespace shoal::python
