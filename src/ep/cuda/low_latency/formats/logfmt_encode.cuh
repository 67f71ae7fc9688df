// SPDX-License-Identifier: Apache-2.0
// logfmt_encode.cuh: a warp encodes a block of a row, or of a sum of rows, in LogFMT-10 and stores
// it at another rank.
//
// A value costs about 25 instructions, most of them its logarithm. The scales of the groups of a
// block, about 100 instructions, are computed once, one a lane. The block stays in registers
// meanwhile.
#pragma once

#include "ep/cuda/device/vectors.cuh"
#include "ep/cuda/low_latency/device/self_signalling.cuh"
#include "ep/cuda/low_latency/formats/logfmt.cuh"
#include "shoal/device/ptx.cuh"

namespace shoal::ep::cuda {

/// The group of which this lane has `count` values; 0: none. All lanes of the group get it.
__device__ inline std::uint32_t summarize_group(const UnitValues& values, std::uint32_t count) {
  constexpr std::uint32_t kMagnitudes = 0x7fff'7fffu, kInfinities = 0x7f80'7f80u;
  std::uint32_t most = 0, least = kInfinities;
#pragma unroll
  for (std::uint32_t i = 0; i < kRowUnit / 2; ++i) {
    if (2 * i >= count) continue;
    most = __vmaxu2(most, values.pairs[i] & kMagnitudes);
    least = __vminu2(least, values.pairs[i] & kMagnitudes);
  }
  // The largest in the lower half, the complement of the smallest in the upper half.
  std::uint32_t both =
      max(most & 0xffffu, most >> 16) | (~min(least & 0xffffu, least >> 16) & 0xffffu) << 16;
#pragma unroll
  for (std::uint32_t distance = kGroupLanes / 2; distance > 0; distance /= 2)
    both = __vmaxu2(both, __shfl_xor_sync(kWarp, both, distance));
  return both ^ 0xffff'0000u;
}

/// `kNormal`: the group allows the shorter functions (numeric/logfmt.hpp).
template <bool kNormal>
__device__ LogfmtBits encode_unit(const UnitValues& values, const numeric::LogfmtScale& scale) {
  LogfmtBits bits{};
  std::uint32_t signs = 0;
#pragma unroll
  for (std::uint32_t i = 0; i < kRowUnit; ++i) {
    const std::uint32_t word = i % 2 == 0 ? values.pairs[i / 2] << 16 : values.pairs[i / 2];
    const float magnitude = __uint_as_float(word & 0x7fff'0000u);
    bits.put(kNormal ? numeric::encode_logfmt_normal(magnitude, scale)
                     : numeric::encode_logfmt(magnitude, scale),
             i);
  }
  // The signs of pair i first go to bits 2 i + 1 and 2 i + 17.
#pragma unroll
  for (std::uint32_t i = 0; i < kRowUnit / 2; ++i)
    signs |= (values.pairs[i] & 0x8000'8000u) >> (14 - 2 * i);
  bits.put_signs((signs >> 1 & 0x5555u) | (signs >> 16 & 0xaaaau));
  return bits;
}

/// Encodes the values of block `block` and stores them in the row at `out`. A warp calls.
template <bool kWhole>
__device__ void send_log_fmt_block(const LogfmtRow<kWhole>& row, std::uint32_t block,
                                   const BlockValues& block_values, std::uint32_t* out) {
  constexpr std::uint32_t kMostPieces = kMostBlockPieces, kMostGroups = kMostPieces * kPieceGroups;
  const std::uint32_t me = lane_id(), first = block * row.block_pieces;
  UnitValues values[kMostPieces];
  std::uint32_t group[kMostPieces];
#pragma unroll
  for (std::uint32_t p = 0; p < kMostPieces; ++p) values[p] = block_values.units[p];
#pragma unroll
  for (std::uint32_t p = 0; p < kMostPieces; ++p)
    group[p] = summarize_group(values[p], block_values.count[p]);
  // Lane i has group i of the block, four times.
  const auto holder = static_cast<int>(me % kPieceGroups * kGroupLanes);
  const std::uint32_t low = __shfl_sync(kWarp, group[0], holder),
                      high = __shfl_sync(kWarp, group[1], holder),
                      mine = (me & kPieceGroups) == 0 ? low : high,
                      number = first * kPieceGroups + me % kMostGroups;
  const bool exists = number < min(row.groups, (first + row.block_pieces) * kPieceGroups);
  const bool cast = __all_sync(kWarp, !exists || numeric::logfmt_castable(logfmt_group(mine))) != 0;
  if (exists && me < kMostGroups)
    ptx::st_relaxed_sys_global(out + row.group(number), mine | (cast ? kLogfmtCast : 0));
  const numeric::LogfmtScale scale = numeric::logfmt_scale(logfmt_group(mine));
  const bool normal = __all_sync(kWarp, !exists || scale.log_min >= numeric::kLogfmtNormal) != 0;
#pragma unroll 1
  for (std::uint32_t p = 0; p < row.block_pieces && first + p < row.pieces; ++p) {
    const auto of_group = static_cast<int>(p * kPieceGroups + me / kGroupLanes);
    const numeric::LogfmtScale here{__shfl_sync(kWarp, scale.log_min, of_group), 0,
                                    __shfl_sync(kWarp, scale.inverse_step, of_group),
                                    __shfl_sync(kWarp, scale.rounding, of_group), true};
    const std::uint32_t stride = row.units_of(first + p);
    std::uint32_t* const base = out + row.base(first + p);
    if (cast) {
      const LogfmtBits bits =
          normal ? encode_unit<true>(values[0], here) : encode_unit<false>(values[0], here);
      if (me < stride) {
#pragma unroll
        for (std::uint32_t k = 0; k < kLogfmtBase; ++k)
          ptx::st_relaxed_sys_global(base + k * stride,
                                     numeric::without_all_ones(bits.words[k], k));
      }
    } else if (me < stride) {
      std::uint32_t* const extension = out + row.extension(first + p);
#pragma unroll
      for (std::uint32_t k = 0; k < kLogfmtBase; ++k)
        store_word(base + k * stride, values[0].pairs[k]);
#pragma unroll
      for (std::uint32_t k = 0; k < kLogfmtExtension; ++k)
        store_word(extension + k * stride, values[0].pairs[kLogfmtBase + k]);
    }
    values[0] = values[1];
  }
}

}  // namespace shoal::ep::cuda
