// SPDX-License-Identifier: Apache-2.0
// float8.cuh: combine rows in e4m3 with scales, fp8 and mxfp8: the scales in their words. Values
// are those of numeric/, places those of combine_row.cuh.
//
// No word of such a row looks like the sentinel, whatever the values: NaNs have the code 0x7f, a
// float32 scale is finite or the NaN 0x7fc00000, and the UE8M0 scale of NaNs travels as 0xfe, which
// no bfloat16 value has.
#pragma once

#include "ep/cuda/device/decode.cuh"
#include "ep/cuda/low_latency/device/self_signalling.cuh"
#include "ep/cuda/low_latency/formats/combine_row.cuh"

namespace shoal::ep::cuda {

/// Lanes that share a scale.
template <CombineEncoding kEncoding>
inline constexpr std::uint32_t kScaleLanes =
    (kEncoding == CombineEncoding::fp8 ? numeric::kGroupChannels : numeric::kMxGroup) / kRowUnit;

/// The scale of this lane's channels in the word of their group.
template <CombineEncoding kEncoding>
__device__ float float8_scale_in(std::uint32_t word) {
  if constexpr (kEncoding == CombineEncoding::fp8) return __uint_as_float(word);
  const std::uint32_t code = word >> lane_id() % kGroupLanes / kScaleLanes<kEncoding> * 8 & 0xffu;
  return numeric::decode_ue8m0(static_cast<std::uint8_t>(code < kMxNanOnTheWire ? code : 0xff));
}

}  // namespace shoal::ep::cuda
