// SPDX-License-Identifier: Apache-2.0
// encode.cuh: the encodings of dispatched rows, 16 channels a thread, as numeric/ defines them.
#pragma once

#include "ep/cuda/device/vectors.cuh"
#include "ep/cuda/low_latency/device/self_signalling.cuh"
#include "ep/numeric/numeric.hpp"

namespace shoal::ep::cuda::dispatch_send {

/// Two codes, the first in the low byte. The instruction rounds to nearest even, saturates and
/// turns every NaN into 0x7f, as numeric::encode_e4m3 does.
__device__ inline std::uint32_t encode_pair(float first, float second) {
#if __CUDA_ARCH__ >= 890
  return ptx::cvt_rn_satfinite_e4m3x2_f32(second, first);
#else
  return numeric::encode_e4m3(first) | std::uint32_t{numeric::encode_e4m3(second)} << 8;
#endif
}

__device__ inline uint2 encode(const uint4& vector, float scale) {
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

/// Eight channels in four bits each, the first in the lowest.
__device__ inline std::uint32_t encode_nvfp4(const uint4& vector, float divisor) {
  const std::uint32_t pairs[4] = {vector.x, vector.y, vector.z, vector.w};
  std::uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    codes |= (numeric::encode_nvfp4(pairs[i] & 0xffffu, divisor) |
              numeric::encode_nvfp4(pairs[i] >> 16, divisor) << 4)
             << 8 * i;
  return codes;
}

/// The scale of the group that this lane, or a pair of lanes, holds, as the byte that travels, and
/// the codes of its 16 channels in their order, in `codes`. Both are free of sentinels: a NaN scale
/// of MXFP8 travels as 0xfe, which is none that it can have, and NVFP4 escapes its codes.
template <RowKind kRows>
__device__ std::uint32_t encode_unit(const uint4& low, const uint4& high, std::uint32_t largest,
                                     float global, uint4& codes) {
  const float amax = __uint_as_float(largest << 16);
  if constexpr (kRows == RowKind::mxfp8) {
    const numeric::MxScale scale = numeric::mx_scale(amax);
    const uint2 a = encode(low, scale.quantize), b = encode(high, scale.quantize);
    codes = {a.x, a.y, b.x, b.y};
    return min(std::uint32_t{scale.code}, kMxNanOnTheWire);
  } else {
    const numeric::Nvfp4Scale scale = numeric::nvfp4_scale(amax, global);
    codes.x = encode_nvfp4(low, scale.divisor);
    codes.y = encode_nvfp4(high, scale.divisor);
    const bool escaped = numeric::escape_nvfp4(codes.x, codes.y, kSentinel);
    // A negative scale, which keep_global_scale reports, must not look like an escaped group.
    return (scale.code & ~numeric::kNvfp4Escaped) | (escaped ? numeric::kNvfp4Escaped : 0);
  }
}

}  // namespace shoal::ep::cuda::dispatch_send
