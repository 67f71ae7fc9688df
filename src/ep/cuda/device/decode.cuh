// SPDX-License-Identifier: Apache-2.0
// decode.cuh: the values of channels in e4m3, as numeric/ defines them.
#pragma once

#include "ep/numeric/numeric.hpp"
#include "shoal/device/ptx.cuh"

namespace shoal::ep::cuda {

/// Calls f(i, value) for the four channels of a word of codes.
template <typename F>
__device__ void decode_e4m3(std::uint32_t codes, float scale, F&& f) {
#pragma unroll
  for (std::uint32_t pair = 0; pair < 2; ++pair) {
#if __CUDA_ARCH__ >= 890
    const std::uint32_t halves =
        ptx::cvt_rn_f16x2_e4m3x2(static_cast<std::uint16_t>(codes >> 16 * pair));
    const float low = ptx::cvt_f32_f16(static_cast<std::uint16_t>(halves)),
                high = ptx::cvt_f32_f16(static_cast<std::uint16_t>(halves >> 16));
#else
    const float low = numeric::decode_e4m3(static_cast<std::uint8_t>(codes >> 16 * pair)),
                high = numeric::decode_e4m3(static_cast<std::uint8_t>(codes >> (16 * pair + 8)));
#endif
    f(2 * pair, numeric::mul(low, scale));
    f(2 * pair + 1, numeric::mul(high, scale));
  }
}

}  // namespace shoal::ep::cuda
