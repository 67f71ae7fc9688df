// SPDX-License-Identifier: Apache-2.0
// elementwise.hpp: the arithmetic of reductions as templates over the element type.
#pragma once

#include <algorithm>
#include <complex>
#include <cstddef>
#include <span>
#include <type_traits>

#include "shoal/collective.hpp"
#include "shoal/device/reduction.hpp"

template <typename Real>
struct shoal::device::Elements<std::complex<Real>> {
  using Accumulator = std::complex<Real>;
  static Accumulator load(Accumulator value) { return value; }
  static Accumulator store(Accumulator value) { return value; }
};

namespace shoal::collective {

/// target[i] = sources[0][i] op sources[1][i] op ..., for i < count: as reduce_elements.
using ElementKernel = void (*)(void* target, std::span<const void* const> sources,
                               std::size_t count);

// The accumulators of a chunk are on the stack (8 KiB at most) and stay in the first-level cache
// while all sources are added.
inline constexpr std::size_t kReduceChunk = 1024;

// Element types and operators are those of reductions in kernels (shoal/device/reduction.hpp).
template <typename T, typename Operation>
void reduce_typed(void* target, std::span<const void* const> sources, std::size_t count) {
  using Element = device::Elements<T>;
  alignas(64) typename Element::Accumulator accumulators[kReduceChunk];
  for (std::size_t begin = 0; begin < count; begin += kReduceChunk) {
    const std::size_t length = std::min(kReduceChunk, count - begin);
    const T* first = static_cast<const T*>(sources[0]) + begin;
    for (std::size_t i = 0; i < length; ++i) accumulators[i] = Element::load(first[i]);
    for (const void* source : sources.subspan(1)) {
      const T* values = static_cast<const T*>(source) + begin;
      for (std::size_t i = 0; i < length; ++i)
        accumulators[i] = Operation{}(accumulators[i], Element::load(values[i]));
    }
    T* results = static_cast<T*>(target) + begin;
    for (std::size_t i = 0; i < length; ++i) results[i] = Element::store(accumulators[i]);
  }
}

/// The kernel of `op` for elements of T; nullptr where it is not defined.
template <typename T>
ElementKernel kernel_for(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return reduce_typed<T, device::Sum>;
    case ReduceOp::prod:
      return reduce_typed<T, device::Prod>;
    default:
      break;
  }
  if constexpr (requires(typename device::Elements<T>::Accumulator a) { a < a; }) {
    if (op == ReduceOp::min) return reduce_typed<T, device::Min>;
    if (op == ReduceOp::max) return reduce_typed<T, device::Max>;
  }
  if constexpr (std::is_integral_v<typename device::Elements<T>::Accumulator>) {
    switch (op) {
      case ReduceOp::bit_and:
        return reduce_typed<T, device::BitAnd>;
      case ReduceOp::bit_or:
        return reduce_typed<T, device::BitOr>;
      case ReduceOp::bit_xor:
        return reduce_typed<T, device::BitXor>;
      default:
        break;
    }
  }
  return nullptr;
}

}  // namespace shoal::collective
