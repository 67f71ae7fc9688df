// SPDX-License-Identifier: Apache-2.0
// bits.hpp: sets of lanes as bits of a word. For host and device code.
#pragma once

#include <bit>
#include <cstdint>

#include "shoal/config.hpp"

/// A function that is called at few places and seldom: it must not take room in the code of others.
#define SHOAL_RARE __attribute__((noinline))

namespace shoal::emulator::gpu {

/// Number of the lowest bit of `bits`, which is not 0.
SHOAL_HOST_DEVICE inline std::uint32_t lowest(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return static_cast<std::uint32_t>(__ffs(static_cast<int>(bits)) - 1);
#else
  return static_cast<std::uint32_t>(std::countr_zero(bits));
#endif
}
/// Number of the highest bit of `bits`, which is not 0.
SHOAL_HOST_DEVICE inline std::uint32_t highest(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return 31 - static_cast<std::uint32_t>(__clz(static_cast<int>(bits)));
#else
  return 31 - static_cast<std::uint32_t>(std::countl_zero(bits));
#endif
}
SHOAL_HOST_DEVICE inline std::uint32_t count_bits(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return static_cast<std::uint32_t>(__popc(bits));
#else
  return static_cast<std::uint32_t>(std::popcount(bits));
#endif
}

/// Several sets of lanes.
template <std::uint32_t kCount>
struct Masks {
  std::uint32_t at[kCount] = {};
};

}  // namespace shoal::emulator::gpu
