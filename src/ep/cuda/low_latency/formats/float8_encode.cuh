// SPDX-License-Identifier: Apache-2.0
// float8_encode.cuh: a warp encodes a block of a row, or of a sum of rows, in e4m3 with scales and
// stores it at another rank.
#pragma once

#include "ep/cuda/device/encode.cuh"
#include "ep/cuda/low_latency/formats/float8.cuh"

namespace shoal::ep::cuda {

/// Encodes the values of block `block` and stores them in the row at `out`. A warp calls.
template <CombineEncoding kEncoding, bool kWhole>
__device__ void send_float8_block(const CombineRow<kEncoding, kWhole>& row, std::uint32_t block,
                                  const BlockValues& values, std::uint32_t* out) {
  const std::uint32_t me = lane_id(), first = block * row.block_pieces;
#pragma unroll
  for (std::uint32_t p = 0; p < kMostBlockPieces; ++p) {
    const std::uint32_t(&pairs)[kRowUnit / 2] = values.units[p].pairs;
    const uint4 low{pairs[0], pairs[1], pairs[2], pairs[3]},
        high{pairs[4], pairs[5], pairs[6], pairs[7]};
    std::uint32_t largest = largest_magnitude(low, high);
#pragma unroll
    for (std::uint32_t distance = kScaleLanes<kEncoding> / 2; distance > 0; distance /= 2)
      largest = max(largest, __shfl_xor_sync(kWarp, largest, distance));
    const bool used = values.count[p] != 0;
    uint4 codes;
    std::uint32_t word;
    if constexpr (kEncoding == CombineEncoding::fp8) {
      const numeric::Scale scale =
          float8_scale(__uint_as_float(largest << 16), numeric::ScaleRounding::none);
      const uint2 a = encode_e4m3(low, scale.quantize), b = encode_e4m3(high, scale.quantize);
      codes = {a.x, a.y, b.x, b.y};
      word = __float_as_uint(scale.dequantize);
    } else {
      word = min(encode_mxfp8(low, high, largest, codes), kMxNanOnTheWire)
             << me % kGroupLanes / kScaleLanes<kEncoding> * 8;
      if (!used) word = 0;
#pragma unroll
      for (std::uint32_t distance = kScaleLanes<kEncoding>; distance < kGroupLanes; distance *= 2)
        word |= __shfl_xor_sync(kWarp, word, distance);
    }
    if (!used) continue;
    ptx::st_relaxed_sys_global(reinterpret_cast<uint4*>(out + row.base(first + p)), codes);
    if (me % kGroupLanes == 0)
      ptx::st_relaxed_sys_global(out + row.group((first + p) * kPieceGroups + me / kGroupLanes),
                                 word);
  }
}

}  // namespace shoal::ep::cuda
