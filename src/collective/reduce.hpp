// SPDX-License-Identifier: Apache-2.0
// reduce.hpp: reductions of element types that no tensor has, for the standard APIs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collective/elementwise.hpp"

namespace shoal::collective {

/// How elements are reduced. dtype and op are compared among the PEs; dtype 0 stands for a type
/// that DataType does not have.
struct Reducer {
  ElementKernel kernel = nullptr;
  std::size_t element = 0;    ///< bytes
  std::size_t alignment = 0;  ///< bytes
  std::uint32_t dtype = 0;
  std::uint32_t op = 0;
};

/// As reduce of shoal/collective.hpp: same order, same algorithm, in place.
void reduce_with(const Team& team, const Reducer& reducer, void* target, const void* source,
                 std::size_t count);

}  // namespace shoal::collective
