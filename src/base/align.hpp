// SPDX-License-Identifier: Apache-2.0
// align.hpp: rounding sizes and offsets up to a multiple, and the unit of memory layouts.
#pragma once

#include <cstddef>

#include "shoal/config.hpp"

namespace shoal {

/// Memory layouts that several processes or GPUs map are made of units of this many bytes. It does
/// not depend on the machine's page size, so that all PEs compute the same layout.
inline constexpr std::size_t kPageBytes = 4096;

/// The smallest multiple of `unit` (at least 1; any number) that is at least `value`. Wraps when
/// value + unit - 1 exceeds 2^64 - 1.
SHOAL_HOST_DEVICE constexpr std::size_t align_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace shoal
