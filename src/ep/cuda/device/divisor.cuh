// SPDX-License-Identifier: Apache-2.0
// divisor.cuh: division by a number that is constant for a launch.
#pragma once

#include <cstdint>

namespace shoal::ep::cuda {

/// Divides numbers below 2^31 by a number that the host knows, through a multiplication (Granlund
/// and Montgomery, "Division by Invariant Integers using Multiplication", 1994).
struct Divisor {
  std::uint32_t divisor = 1, multiplier = 1, shift = 0;

  Divisor() = default;
  explicit Divisor(std::uint32_t by) : divisor(by) {
    while ((std::uint64_t{1} << shift) < by) ++shift;
    multiplier = static_cast<std::uint32_t>(
        (std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift) - by) / by + 1);
  }
#ifdef __CUDACC__
  __device__ std::uint32_t quotient(std::uint32_t number) const {
    return (__umulhi(number, multiplier) + number) >> shift;
  }
  __device__ std::uint32_t remainder(std::uint32_t number) const {
    return number - quotient(number) * divisor;
  }
#endif
};

}  // namespace shoal::ep::cuda
