// SPDX-License-Identifier: Apache-2.0
// encode.cuh: groups of bfloat16 channels in e4m3, MXFP8 and NVFP4, as numeric/ defines them.
#pragma once

#include "ep/cuda/device/vectors.cuh"
#include "ep/numeric/numeric.hpp"
#include "shoal/device/ptx.cuh"

namespace shoal::ep::cuda {

/// Two codes, the first in the low byte. The instruction rounds to nearest even, saturates and
/// turns every NaN into 0x7f, as numeric::encode_e4m3 does.
__device__ inline std::uint32_t encode_pair(float first, float second) {
#if __CUDA_ARCH__ >= 890
  return ptx::cvt_rn_satfinite_e4m3x2_f32(second, first);
#else
  return numeric::encode_e4m3(first) | std::uint32_t{numeric::encode_e4m3(second)} << 8;
#endif
}

/// Eight channels in e4m3.
__device__ inline uint2 encode_e4m3(const uint4& vector, float scale) {
  float values[8];
  Bfloat16Vector::widen(vector, values);
  std::uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    pairs[i] =
        encode_pair(numeric::mul(values[2 * i], scale), numeric::mul(values[2 * i + 1], scale));
  return {pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16};
}

__device__ inline std::uint32_t largest_magnitude(const uint4& a, const uint4& b) {
  constexpr std::uint32_t kMagnitudes = 0x7fff'7fffu;
  std::uint32_t most = __vmaxu2(a.x & kMagnitudes, a.y & kMagnitudes);
  most = __vmaxu2(most, __vmaxu2(a.z & kMagnitudes, a.w & kMagnitudes));
  most = __vmaxu2(most, __vmaxu2(b.x & kMagnitudes, b.y & kMagnitudes));
  most = __vmaxu2(most, __vmaxu2(b.z & kMagnitudes, b.w & kMagnitudes));
  return max(most & 0xffffu, most >> 16);
}

// IEEE divisions without branches. Markstein: with an inverse that is rounded correctly and a
// quotient that is at most a unit off, one correction by the remainder rounds the quotient
// correctly. For dividends with the eight bits of a bfloat16 that holds for all mantissas of a
// divisor, and for inverses of such numbers after one Newton step from any value within four units
// (all were tried; unit_ep_numeric_test tries some). Exponents must be far from the limits of
// float32: other groups of channels take the functions of numeric/.
// Source: P. Markstein, Computation of elementary functions on the IBM RISC System/6000, 1990.

__device__ inline float quotient(float dividend, float divisor, float inverse) {
  const float first = numeric::mul(dividend, inverse);
  return numeric::fma(numeric::fma(-first, divisor, dividend), inverse, first);
}
/// The inverse of a number with at most eight bits of mantissa, rounded to nearest.
__device__ inline float inverse_of(float number) {
  const float first = ptx::rcp_approx_ftz_f32(number);
  return numeric::fma(numeric::fma(-number, first, 1.0F), first, first);
}
inline constexpr float kFarAbove = 0x1p100F, kFarBelow = 0x1p-60F;

/// numeric::scale_of for the largest magnitude of bfloat16 channels.
__device__ inline numeric::Scale float8_scale(float amax, numeric::ScaleRounding rounding) {
  if (rounding != numeric::ScaleRounding::none || !(amax < kFarAbove))
    return numeric::scale_of(amax, rounding);
  constexpr float kLeast = numeric::kSmallestAmax, kMost = numeric::kE4m3Max;
  const bool small = amax < kLeast;
  const float inverse = inverse_of(amax);
  return {small ? kMost / kLeast : quotient(kMost, amax, inverse),
          small ? kLeast / kMost : quotient(amax, kMost, 1 / kMost)};
}

/// Eight channels in four bits each, the first in the lowest. `encode(bits)` gives the code of one.
template <typename Encode>
__device__ std::uint32_t encode_eight(const uint4& vector, Encode&& encode) {
  const std::uint32_t pairs[4] = {vector.x, vector.y, vector.z, vector.w};
  std::uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    codes |= (encode(pairs[i] & 0xffffu) | encode(pairs[i] >> 16) << 4) << 8 * i;
  return codes;
}

/// The codes of the 16 channels of a lane in MXFP8, in their order, and the scale, for two lanes
/// whose largest magnitude has the bits `largest`.
__device__ inline std::uint32_t encode_mxfp8(const uint4& low, const uint4& high,
                                             std::uint32_t largest, uint4& codes) {
  const numeric::MxScale scale = numeric::mx_scale(__uint_as_float(largest << 16));
  const uint2 a = encode_e4m3(low, scale.quantize), b = encode_e4m3(high, scale.quantize);
  codes = {a.x, a.y, b.x, b.y};
  return scale.code;
}

/// The global scale of NVFP4 rows, and its inverse.
struct GlobalScale {
  float scale, inverse;
  __device__ explicit GlobalScale(float given)
      : scale(given), inverse(given == 1 ? 1 : numeric::div(1, given)) {}
};

__device__ inline std::uint32_t encode_scale(float scale) {
  return encode_pair(scale, 0) & 0xffu;
}

/// The same in NVFP4, for one lane: codes of 8 bytes.
__device__ inline std::uint32_t encode_nvfp4(const uint4& low, const uint4& high,
                                             std::uint32_t largest, const GlobalScale& global,
                                             uint2& codes) {
  constexpr float kMost = numeric::kE2m1Max;
  const float amax = __uint_as_float(largest << 16);
  // A scale is at least 2^-9.
  bool near = amax >= kFarBelow && amax < kFarAbove && global.scale >= kFarBelow &&
              global.scale <= 1 / kFarBelow;
  if (near) {
    const std::uint32_t scale =
        encode_scale(numeric::mul(quotient(amax, kMost, 1 / kMost), global.scale));
    const float divisor = quotient(numeric::decode_e4m3(scale), global.scale, global.inverse);
    const float inverse = numeric::div(1, divisor);
    near = scale != 0 && numeric::mul(amax, inverse) < kFarAbove;
    const auto encode = [&](std::uint32_t bits) {
      const float magnitude = __uint_as_float((bits & 0x7fffu) << 16);
      return numeric::encode_e2m1(quotient(magnitude, divisor, inverse)) | (bits >> 12 & 0x8u);
    };
    codes = {encode_eight(low, encode), encode_eight(high, encode)};
    if (near) return scale;
  }
  const numeric::Nvfp4Scale scale = numeric::nvfp4_scale(amax, global.scale);
  const auto encode = [&](std::uint32_t bits) {
    return numeric::encode_nvfp4(bits, scale.divisor);
  };
  codes = {encode_eight(low, encode), encode_eight(high, encode)};
  return scale.code;
}

}  // namespace shoal::ep::cuda
