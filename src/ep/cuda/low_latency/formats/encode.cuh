// SPDX-License-Identifier: Apache-2.0
// encode.cuh: dispatched rows without sentinels, 16 channels a thread.
#pragma once

#include "ep/cuda/device/encode.cuh"
#include "ep/cuda/low_latency/device/self_signalling.cuh"

namespace shoal::ep::cuda::dispatch_send {

/// The scale of the group that this lane, or a pair of lanes, holds, as the byte that travels, and
/// the codes of its 16 channels in their order, in `codes`. Both are free of sentinels: a NaN scale
/// of MXFP8 travels as 0xfe, which is none that it can have, and NVFP4 escapes its codes.
template <RowKind kRows>
__device__ std::uint32_t encode_unit(const uint4& low, const uint4& high, std::uint32_t largest,
                                     const GlobalScale& global, uint4& codes) {
  if constexpr (kRows == RowKind::mxfp8) {
    return min(encode_mxfp8(low, high, largest, codes), kMxNanOnTheWire);
  } else {
    uint2 pairs;
    const std::uint32_t scale = encode_nvfp4(low, high, largest, global, pairs);
    const bool escaped = numeric::escape_nvfp4(pairs.x, pairs.y, kSentinel);
    codes.x = pairs.x;
    codes.y = pairs.y;
    // A negative scale, which keep_global_scale reports, must not look like an escaped group.
    return (scale & ~numeric::kNvfp4Escaped) | (escaped ? numeric::kNvfp4Escaped : 0);
  }
}

}  // namespace shoal::ep::cuda::dispatch_send
