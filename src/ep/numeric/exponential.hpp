// SPDX-License-Identifier: Apache-2.0
// exponential.hpp: exp in float64 from fused multiply-adds. It gives the same bits on every
// machine, host or device, which neither libm nor CUDA's library guarantees.
//
// The error is below 1 unit in the last place (unit_ep_numeric_test).
#pragma once

#include <cstdint>

#include "shoal/config.hpp"

namespace shoal::ep::numeric {

#if defined(__CUDA_ARCH__)
__device__ inline double mul(double a, double b) {
  return __dmul_rn(a, b);
}
__device__ inline double add(double a, double b) {
  return __dadd_rn(a, b);
}
__device__ inline double div(double a, double b) {
  return __ddiv_rn(a, b);
}
__device__ inline double fma(double a, double b, double c) {
  return __fma_rn(a, b, c);
}
#else
SHOAL_HOST_DEVICE inline double mul(double a, double b) {
  return a * b;
}
SHOAL_HOST_DEVICE inline double add(double a, double b) {
  return a + b;
}
SHOAL_HOST_DEVICE inline double div(double a, double b) {
  return a / b;
}
SHOAL_HOST_DEVICE inline double fma(double a, double b, double c) {
  return __builtin_fma(a, b, c);
}
#endif

/// 2^n for n from -1022 to 1023.
SHOAL_HOST_DEVICE inline double power_of_two(std::int64_t n) {
  return __builtin_bit_cast(double, static_cast<std::uint64_t>(n + 1023) << 52);
}

/// e^x. Overflow gives infinity, underflow subnormals and then 0; NaN stays.
SHOAL_HOST_DEVICE inline double exp(double x) {
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  // ln 2 = kHigh + kLow; n * kHigh is exact, because kHigh ends in zeros.
  constexpr double kHigh = 0x1.62e42fefa0000p-1, kLow = 0x1.cf79abc9e3b3ap-40;
  constexpr double kRounder = 0x1.8p52;  // adding it rounds to an integer
  if (x != x) return x;
  const double low = x < -746.0 ? -746.0 : x;
  const double clamped = low > 710.0 ? 710.0 : low;
  const double shifted = add(mul(clamped, kLog2E), kRounder);
  const double n = add(shifted, -kRounder);
  const double r = fma(n, -kLow, fma(n, -kHigh, clamped));  // from -ln(2) / 2 to ln(2) / 2
  // The series of e^r; the first omitted term is below 2^-57.
  double p = 1.0 / 6227020800.0;
  p = fma(p, r, 1.0 / 479001600.0);
  p = fma(p, r, 1.0 / 39916800.0);
  p = fma(p, r, 1.0 / 3628800.0);
  p = fma(p, r, 1.0 / 362880.0);
  p = fma(p, r, 1.0 / 40320.0);
  p = fma(p, r, 1.0 / 5040.0);
  p = fma(p, r, 1.0 / 720.0);
  p = fma(p, r, 1.0 / 120.0);
  p = fma(p, r, 1.0 / 24.0);
  p = fma(p, r, 1.0 / 6.0);
  p = fma(p, r, 0.5);
  p = fma(p, r, 1.0);
  p = fma(p, r, 1.0);
  // Two steps, because 2^n alone may be out of range where the result is not.
  const auto whole = static_cast<std::int64_t>(n), half = whole >> 1;
  return mul(mul(p, power_of_two(half)), power_of_two(whole - half));
}

}  // namespace shoal::ep::numeric
