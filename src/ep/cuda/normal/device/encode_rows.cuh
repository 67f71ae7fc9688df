// SPDX-License-Identifier: Apache-2.0
// encode_rows.cuh: one row of bfloat16 in a format (Quantize), by a warp, 16 channels a lane.
#pragma once

#include "ep/cuda/device/encode.cuh"
#include "ep/cuda/device/group.cuh"
#include "ep/plan/row_format.hpp"

namespace shoal::ep::cuda {
namespace {

/// Replaces `low`, the first of 16 channels, by their codes. Returns the scale of the group whose
/// largest magnitude has the bits `largest`.
template <Quantize kQuantize>
__device__ std::uint32_t encode_part(uint4& low, const uint4& high, std::uint32_t largest,
                                     const GlobalScale& global) {
  if constexpr (kQuantize == Quantize::nvfp4) {
    uint2 codes;
    const std::uint32_t scale = encode_nvfp4(low, high, largest, global, codes);
    low.x = codes.x;
    low.y = codes.y;
    return scale;
  } else if constexpr (kQuantize == Quantize::mxfp8) {
    return encode_mxfp8(low, high, largest, low);
  } else {
    const numeric::Scale scale =
        float8_scale(__uint_as_float(largest << 16), kQuantize == Quantize::fp8
                                                         ? numeric::ScaleRounding::none
                                                         : numeric::ScaleRounding::power_of_two);
    const uint2 a = encode_e4m3(low, scale.quantize), b = encode_e4m3(high, scale.quantize);
    low = {a.x, a.y, b.x, b.y};
    return detail::has_byte_scales(kQuantize) ? numeric::encode_ue8m0(scale.dequantize)
                                              : __float_as_uint(scale.dequantize);
  }
}

/// Channels of a lane: a unit of a row.
constexpr std::uint32_t kUnit = 16;
/// Lanes that share a scale.
template <Quantize kQuantize>
inline constexpr std::uint32_t kScaleLanes = detail::RowFormat(kQuantize).group / kUnit;

/// Encodes a row. load(unit, inside, low, high) sets the 16 channels of a unit where `inside`; all
/// lanes call it together. `scales` get whole words of 16 bytes; bytes without a scale become 0.
template <Quantize kQuantize, typename Load>
__device__ void encode_units(const Load& load, std::byte* codes, std::byte* scales,
                             std::uint32_t hidden, float global_scale) {
  constexpr std::uint32_t kLanes = kScaleLanes<kQuantize>;
  constexpr bool kBytes = detail::has_byte_scales(kQuantize);
  constexpr int kBatch = kQuantize == Quantize::nvfp4 ? 2 : 4;  // independent parts in flight
  const GlobalScale global(global_scale);
  const std::uint32_t lane = lane_id(), units = hidden / kUnit;
  // Whole warps iterate together because of the shuffles; the last group can be short.
  for (std::uint32_t first = lane; first < units + lane; first += 32 * kBatch) {
    uint4 low[kBatch], high[kBatch];
    std::uint32_t largest[kBatch], scale[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const std::uint32_t unit = first + 32 * b;
      low[b] = high[b] = uint4{};
      load(unit, unit < units, low[b], high[b]);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) largest[b] = largest_magnitude(low[b], high[b]);
#pragma unroll
    for (std::uint32_t distance = kLanes / 2; distance > 0; distance /= 2)
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
        largest[b] = max(largest[b], __shfl_xor_sync(~0u, largest[b], distance));
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      scale[b] = encode_part<kQuantize>(low[b], high[b], largest[b], global);
    __syncwarp();
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const std::uint32_t unit = first + 32 * b;
      if (unit >= units) continue;
      if constexpr (kQuantize == Quantize::nvfp4)
        reinterpret_cast<uint2*>(codes)[unit] = {low[b].x, low[b].y};
      else
        reinterpret_cast<uint4*>(codes)[unit] = low[b];
      if (unit % kLanes != 0) continue;
      if constexpr (kBytes)
        reinterpret_cast<std::uint8_t*>(scales)[unit / kLanes] =
            static_cast<std::uint8_t>(scale[b]);
      else
        reinterpret_cast<std::uint32_t*>(scales)[unit / kLanes] = scale[b];
    }
  }
  const std::uint32_t end = (units + kLanes - 1) / kLanes * (kBytes ? 1 : 4);
  if (end + lane < (end + 15) / 16 * 16) scales[end + lane] = std::byte{0};
  __syncwarp();
}

/// Encodes the row at `from`, which may be where `codes` are: they overwrite only what all lanes
/// have read.
template <Quantize kQuantize>
__device__ __noinline__ void encode_row(const std::byte* from, std::byte* codes, std::byte* scales,
                                        std::uint32_t hidden, float global_scale) {
  const auto* const vectors = reinterpret_cast<const uint4*>(from);
  const auto load = [&](std::uint32_t unit, bool inside, uint4& low, uint4& high) {
    if (!inside) return;
    low = vectors[2 * unit];
    high = vectors[2 * unit + 1];
  };
  encode_units<kQuantize>(load, codes, scales, hidden, global_scale);
}

/// The same in a format that is not none.
__device__ inline void encode_row(Quantize quantize, const std::byte* from, std::byte* codes,
                                  std::byte* scales, std::uint32_t hidden,
                                  const float* global_scale) {
  switch (quantize) {
    case Quantize::fp8:
      return encode_row<Quantize::fp8>(from, codes, scales, hidden, 1);
    case Quantize::fp8_power_of_two:
      return encode_row<Quantize::fp8_power_of_two>(from, codes, scales, hidden, 1);
    case Quantize::fp8_ue8m0:
      return encode_row<Quantize::fp8_ue8m0>(from, codes, scales, hidden, 1);
    case Quantize::mxfp8:
      return encode_row<Quantize::mxfp8>(from, codes, scales, hidden, 1);
    default:
      return encode_row<Quantize::nvfp4>(from, codes, scales, hidden,
                                         global_scale == nullptr ? 1.0F : __ldg(global_scale));
  }
}

}  // namespace
}  // namespace shoal::ep::cuda
