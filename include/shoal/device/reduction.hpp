// SPDX-License-Identifier: Apache-2.0
// shoal/device/reduction.hpp: element types and operators of reductions in kernels. Compiles for
// the CPU as well.
//
//   shoal::device::reduce(Block{}, world, team, shoal::device::Sum{}, target, source, count);
//
// Sums have the bits of shoal/collective.hpp: ascending by PE, integers wrap, BFloat16 and Float16
// are accumulated in float and rounded once, min and max are NaN when any PE has a NaN there. The
// sign and payload of a NaN are the processor's. Compile kernels that use Prod and Sum of the same
// values elsewhere with -fmad=false where they must not be fused; the operators here are not.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include <shoal/config.hpp>
#include <shoal/numeric.hpp>

namespace shoal::device {

/// bfloat16 and float16 by their bits. __nv_bfloat16* and __half* can be cast to pointers to these.
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

/// Rules for accumulating an element type: Accumulator, load (exact) and store (rounds once).
/// Specialize it for other element types of 1, 2, 4 or 8 bytes.
template <typename T>
struct Elements {
  static_assert(std::is_arithmetic_v<T>);
  using Accumulator = T;
  SHOAL_HOST_DEVICE static T load(T value) { return value; }
  SHOAL_HOST_DEVICE static T store(T value) { return value; }
};
template <>
struct Elements<BFloat16> {
  using Accumulator = float;
  SHOAL_HOST_DEVICE static float load(BFloat16 value) { return float_from_bfloat16(value.bits); }
  SHOAL_HOST_DEVICE static BFloat16 store(float value) { return {bfloat16_from_float(value)}; }
};
template <>
struct Elements<Float16> {
  using Accumulator = float;
  SHOAL_HOST_DEVICE static float load(Float16 value) { return float_from_float16(value.bits); }
  SHOAL_HOST_DEVICE static Float16 store(float value) { return {float16_from_float(value)}; }
};

namespace detail {

/// T where it is an integer.
template <typename T>
using Integer = std::enable_if_t<std::is_integral_v<T>, T>;

/// Integers are combined as unsigned values of at least 32 bits, whose overflow is defined.
template <typename T, typename Operation>
SHOAL_HOST_DEVICE T wrapping(T a, T b, Operation operation) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::conditional_t<(sizeof(T) < 8), std::uint32_t, std::uint64_t>;
    return static_cast<T>(operation(static_cast<Unsigned>(a), static_cast<Unsigned>(b)));
  } else {
    return operation(a, b);
  }
}

}  // namespace detail

struct Sum {
  template <typename T>
  SHOAL_HOST_DEVICE T operator()(T a, T b) const {
    return detail::wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
};
struct Prod {
  template <typename T>
  SHOAL_HOST_DEVICE T operator()(T a, T b) const {
    return detail::wrapping(a, b, [](auto x, auto y) { return x * y; });
  }
};
// `b != b` holds for a NaN, which then stays the result, since all comparisons with it are false.
struct Min {
  template <typename T>
  SHOAL_HOST_DEVICE T operator()(T a, T b) const {
    return ((b < a) | (b != b)) ? b : a;  // NOLINT(misc-redundant-expression)
  }
};
struct Max {
  template <typename T>
  SHOAL_HOST_DEVICE T operator()(T a, T b) const {
    return ((b > a) | (b != b)) ? b : a;  // NOLINT(misc-redundant-expression)
  }
};
// The bit operators take integers only.
struct BitAnd {
  template <typename T>
  SHOAL_HOST_DEVICE detail::Integer<T> operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct BitOr {
  template <typename T>
  SHOAL_HOST_DEVICE detail::Integer<T> operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct BitXor {
  template <typename T>
  SHOAL_HOST_DEVICE detail::Integer<T> operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};

// Kernels that include nvshmem.h may be C++17, which has no concepts.
#ifdef __cpp_concepts
/// An operator that takes the accumulator of T.
template <typename Op, typename T>
concept ReductionOf = requires(const Op& op, typename Elements<T>::Accumulator a) {
  { op(a, a) } -> std::same_as<typename Elements<T>::Accumulator>;
} && (sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);
#define SHOAL_REQUIRES_REDUCTION(OP, T) requires ReductionOf<OP, T>
#else
#define SHOAL_REQUIRES_REDUCTION(OP, T)
#endif

}  // namespace shoal::device
