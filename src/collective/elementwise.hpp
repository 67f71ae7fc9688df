// SPDX-License-Identifier: Apache-2.0
// elementwise.hpp: the arithmetic of reductions as templates over the element type.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "shoal/collective.hpp"

namespace shoal::collective {

/// target[i] = sources[0][i] op sources[1][i] op ..., for i < count: as reduce_elements.
using ElementKernel = void (*)(void* target, std::span<const void* const> sources,
                               std::size_t count);

// The accumulators of a chunk are on the stack (8 KiB at most) and stay in the first-level cache
// while all sources are added.
inline constexpr std::size_t kReduceChunk = 1024;

// Each element type: its form in memory, the type that accumulates it, and the conversions.
// Integers are accumulated as unsigned values, whose overflow is defined.
template <typename T>
struct Plain {
  using Stored = T;
  using Accumulator = T;
  static T load(T value) { return value; }
  static T store(T value) { return value; }
};

template <typename T>
T wrapping(T a, T b, auto operation) {
  if constexpr (std::is_integral_v<T>) {
    // Narrow unsigned types would be promoted to int, whose overflow is undefined.
    using Unsigned = std::conditional_t<(sizeof(T) < 4), std::uint32_t, std::make_unsigned_t<T>>;
    return static_cast<T>(operation(static_cast<Unsigned>(a), static_cast<Unsigned>(b)));
  } else {
    return operation(a, b);
  }
}

struct Sum {
  template <typename T>
  T operator()(T a, T b) const {
    return wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
};
struct Prod {
  template <typename T>
  T operator()(T a, T b) const {
    return wrapping(a, b, [](auto x, auto y) { return x * y; });
  }
};
// `b != b` holds for a NaN, which then stays the result, since all comparisons with it are false.
struct Min {
  template <typename T>
  T operator()(T a, T b) const {
    return ((b < a) | (b != b)) ? b : a;  // NOLINT(misc-redundant-expression)
  }
};
struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return ((b > a) | (b != b)) ? b : a;  // NOLINT(misc-redundant-expression)
  }
};
struct BitAnd {
  template <typename T>
  T operator()(T a, T b) const {
    return a & b;
  }
};
struct BitOr {
  template <typename T>
  T operator()(T a, T b) const {
    return a | b;
  }
};
struct BitXor {
  template <typename T>
  T operator()(T a, T b) const {
    return a ^ b;
  }
};

template <typename Element, typename Operation>
void reduce_typed(void* target, std::span<const void* const> sources, std::size_t count) {
  using Stored = typename Element::Stored;
  alignas(64) typename Element::Accumulator accumulators[kReduceChunk];
  for (std::size_t begin = 0; begin < count; begin += kReduceChunk) {
    const std::size_t length = std::min(kReduceChunk, count - begin);
    const Stored* first = static_cast<const Stored*>(sources[0]) + begin;
    for (std::size_t i = 0; i < length; ++i) accumulators[i] = Element::load(first[i]);
    for (const void* source : sources.subspan(1)) {
      const Stored* values = static_cast<const Stored*>(source) + begin;
      for (std::size_t i = 0; i < length; ++i)
        accumulators[i] = Operation{}(accumulators[i], Element::load(values[i]));
    }
    Stored* results = static_cast<Stored*>(target) + begin;
    for (std::size_t i = 0; i < length; ++i) results[i] = Element::store(accumulators[i]);
  }
}

/// The kernel of `op` for an element type such as Plain<int>; nullptr where it is not defined.
template <typename Element>
ElementKernel kernel_for(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return reduce_typed<Element, Sum>;
    case ReduceOp::prod:
      return reduce_typed<Element, Prod>;
    default:
      break;
  }
  if constexpr (requires(typename Element::Accumulator a) { a < a; }) {
    if (op == ReduceOp::min) return reduce_typed<Element, Min>;
    if (op == ReduceOp::max) return reduce_typed<Element, Max>;
  }
  if constexpr (std::is_integral_v<typename Element::Accumulator>) {
    switch (op) {
      case ReduceOp::bit_and:
        return reduce_typed<Element, BitAnd>;
      case ReduceOp::bit_or:
        return reduce_typed<Element, BitOr>;
      case ReduceOp::bit_xor:
        return reduce_typed<Element, BitXor>;
      default:
        break;
    }
  }
  return nullptr;
}

}  // namespace shoal::collective
