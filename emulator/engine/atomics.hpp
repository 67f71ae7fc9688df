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

/// The value after the operation.
std::uint64_t apply_atomic(const AtomicOperands& operands, std::uint64_t old_value);

/// Sum without carries out of the bits that are set in `boundary`.
std::uint64_t add_within_fields(std::uint64_t a, std::uint64_t b, std::uint64_t boundary);

}  // namespace shoal::emulator
