// SPDX-License-Identifier: Apache-2.0
// atomics.hpp: the arithmetic of atomic operations.
#pragma once

#include <cstdint>

#include "engine/types.hpp"

namespace shoal::emulator {

/// Operands of an atomic, in host byte order. Sizes are 8 bytes, or 4 for masked ones.
struct AtomicOperands {
  Opcode opcode = Opcode::fetch_add;
  std::uint8_t size = 8;
  std::uint64_t swap_or_add = 0;
  std::uint64_t compare = 0;
  std::uint64_t swap_mask = ~std::uint64_t{0};
  /// Compare mask of a compare-swap; field boundary of a fetch-add: bit k stops the carry out of
  /// bit k, so all ones make it an exclusive or.
  std::uint64_t compare_mask_or_boundary = 0;
};

/// Sum without carries out of the bits that are set in `boundary`.
constexpr std::uint64_t add_within_fields(std::uint64_t a, std::uint64_t b,
                                          std::uint64_t boundary) {
  // Add all bits below the top bit of each field, then that bit without its carry.
  return ((a & ~boundary) + (b & ~boundary)) ^ ((a ^ b) & boundary);
}

/// The value after the operation.
constexpr std::uint64_t apply_atomic(const AtomicOperands& operands, std::uint64_t old_value) {
  const std::uint64_t width = operands.size == 4 ? 0xffffffff : ~std::uint64_t{0};
  std::uint64_t value = old_value;
  switch (operands.opcode) {
    case Opcode::compare_swap:
      if (old_value == operands.compare) value = operands.swap_or_add;
      break;
    case Opcode::masked_compare_swap:
      if (((old_value ^ operands.compare) & operands.compare_mask_or_boundary & width) == 0)
        value = (old_value & ~operands.swap_mask) | (operands.swap_or_add & operands.swap_mask);
      break;
    case Opcode::fetch_add:
      value = old_value + operands.swap_or_add;
      break;
    case Opcode::masked_fetch_add:
      value = add_within_fields(old_value, operands.swap_or_add, operands.compare_mask_or_boundary);
      break;
    default:
      break;
  }
  return value & width;
}

}  // namespace shoal::emulator
