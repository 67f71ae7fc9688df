// SPDX-License-Identifier: Apache-2.0
// shoal/operation.hpp: comparisons, signal operations and atomic operations (OpenSHMEM 1.5,
// sections 9.8, 9.10 and 9.11), for host and device.
#pragma once

#include <cstdint>

#include <shoal/config.hpp>

namespace shoal {

/// Comparison of a variable with the value of a wait or test: `variable <op> value`.
enum class Compare : std::uint8_t { equal, not_equal, greater, greater_equal, less, less_equal };
/// Effect of a signal on the 64-bit word at its target.
enum class SignalOp : std::uint8_t { set, add };
/// Atomic read-modify-write operations. compare_swap writes the operand when the word equals a
/// given value.
enum class AtomicOp : std::uint8_t {
  fetch,
  set,
  add,
  bit_and,
  bit_or,
  bit_xor,
  swap,
  compare_swap
};

namespace detail {

/// True if `seen` compares with `value` as asked.
template <typename T>
SHOAL_HOST_DEVICE constexpr bool holds(T seen, Compare compare, T value) {
  switch (compare) {
    case Compare::equal:
      return seen == value;
    case Compare::not_equal:
      return seen != value;
    case Compare::greater:
      return seen > value;
    case Compare::greater_equal:
      return seen >= value;
    case Compare::less:
      return seen < value;
    case Compare::less_equal:
      return seen <= value;
  }
  return false;
}

}  // namespace detail

}  // namespace shoal
