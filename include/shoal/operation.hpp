// SPDX-License-Identifier: Apache-2.0
// shoal/operation.hpp: the kinds of one-sided operations.
#pragma once

#include <cstdint>

namespace shoal {

enum class Compare : std::uint8_t { equal, not_equal, greater, greater_equal, less, less_equal };
enum class SignalOp : std::uint8_t { set, add };
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

}  // namespace shoal
