// SPDX-License-Identifier: Apache-2.0
// reduce.hpp: reductions of element types that no tensor has, for the standard APIs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "collective/elementwise.hpp"
#include "shoal/cuda_collective.hpp"

namespace shoal::collective {

/// Reduction of elements. dtype and op are compared among the PEs; dtype 0 stands for a type
/// that DataType does not have.
struct Reducer {
  ElementKernel kernel = nullptr;
  std::size_t element = 0;    ///< bytes
  std::size_t alignment = 0;  ///< bytes
  std::uint32_t dtype = 0;
  std::uint32_t op = 0;
  std::optional<cuda::ElementType> on_gpu{};  ///< the type that kernels reduce with the same bits
};

/// The type of kernels for elements of T; nullopt: there is none.
template <typename T>
constexpr std::optional<cuda::ElementType> element_type_on_gpu() {
  if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool> && sizeof(T) <= 8)
    return cuda::element_type_of<T>();
  return std::nullopt;
}

/// Memory of the heap that one team uses at a time: twice `bytes` bytes for each of its PEs. The
/// elements of the other PEs arrive there.
struct Scratch {
  std::size_t offset = 0;  ///< in every PE's heap
  std::size_t bytes = 0;
};

/// Like reduce of shoal/collective.hpp: same order, in place. `scratch`: for teams whose PEs
/// deliver; the arguments of reductions that use it are not compared.
void reduce_with(const Team& team, const Reducer& reducer, void* target, const void* source,
                 std::size_t count, const Scratch& scratch = {});
/// Like reduce_scatter of shoal/collective.hpp.
void reduce_scatter_with(const Team& team, const Reducer& reducer, void* target, const void* source,
                         std::size_t count);

}  // namespace shoal::collective
