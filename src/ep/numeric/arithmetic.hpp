// SPDX-License-Identifier: Apache-2.0
// arithmetic.hpp: float32 operations with the same bits on every machine, host or device.
//
// Compilers may fuse a * b + c into one rounding; these functions fix whether they do. On the
// device they are the intrinsics that nvcc never fuses. On the host mul and add are plain
// operators: the build passes -ffp-contract=off, and unit_ep_numeric_test fails without it.
#pragma once

#include <cstdint>

#include "shoal/config.hpp"

namespace shoal::ep::numeric {

SHOAL_HOST_DEVICE inline std::uint32_t bits_of(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}
SHOAL_HOST_DEVICE inline float float_of(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

inline constexpr std::uint32_t kSignBit = 0x8000'0000u;
inline constexpr std::uint32_t kInfinityBits = 0x7f80'0000u;
inline constexpr std::uint32_t kQuietNanBits = 0x7fc0'0000u;

#if defined(__CUDA_ARCH__)
__device__ inline float mul(float a, float b) {
  return __fmul_rn(a, b);
}
__device__ inline float add(float a, float b) {
  return __fadd_rn(a, b);
}
__device__ inline float sub(float a, float b) {
  return __fsub_rn(a, b);
}
__device__ inline float div(float a, float b) {
  return __fdiv_rn(a, b);
}
__device__ inline float fma(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
#else
SHOAL_HOST_DEVICE inline float mul(float a, float b) {
  return a * b;
}
SHOAL_HOST_DEVICE inline float add(float a, float b) {
  return a + b;
}
SHOAL_HOST_DEVICE inline float sub(float a, float b) {
  return a - b;
}
SHOAL_HOST_DEVICE inline float div(float a, float b) {
  return a / b;
}
SHOAL_HOST_DEVICE inline float fma(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
#endif

/// One term of a weighted sum: the product is rounded, then the sum, so that machines without a
/// fused operation agree.
SHOAL_HOST_DEVICE inline float accumulate(float sum, float weight, float value) {
  return add(sum, mul(weight, value));
}

}  // namespace shoal::ep::numeric
