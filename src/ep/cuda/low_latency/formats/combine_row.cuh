// SPDX-License-Identifier: Apache-2.0
// combine_row.cuh: encoded combine rows on the device: the places of their words, and the bfloat16
// values of which they are made.
//
// A warp handles a piece of 512 channels, 16 a lane, so that 8 lanes share a group of 128 channels
// and the bits of a lane are whole words. Every word has a place that does not depend on the
// values, so that no warp waits for another:
//
//   base       of each piece, the codes of all lanes: five words each in LogFMT-10, four in e4m3
//   groups     a word for each 128 channels: in LogFMT-10 their range, with kLogfmtCast where their
//              block is cast; in fp8 their float32 scale; in mxfp8 their four scales, the first in
//              the lowest byte
//   extension  LogFMT-10 alone: of each piece that stays bfloat16, the other three words of all
//   lanes
//
// In LogFMT-10, word k of all lanes lies together, so that a warp loads and stores 128 bytes in a
// row; in e4m3 the words of a lane do, so that one instruction moves them. A row ends with whole
// units: what exceeds it is zero.
#pragma once

#include "ep/cuda/device/vectors.cuh"
#include "ep/cuda/low_latency/device/places.cuh"
#include "ep/numeric/numeric.hpp"

namespace shoal::ep::cuda {

/// A lane's part of a piece.
inline constexpr std::uint32_t kRowUnit = 16;
inline constexpr std::uint32_t kRowPiece = 32 * kRowUnit;
/// Groups of a piece, and lanes of a group.
inline constexpr std::uint32_t kPieceGroups = kRowPiece / numeric::kGroupChannels,
                               kGroupLanes = numeric::kGroupChannels / kRowUnit;

/// Words of a unit in the base, and, in LogFMT-10, the others of one that stays bfloat16.
template <CombineEncoding kEncoding>
inline constexpr std::uint32_t kBaseWords = kEncoding == CombineEncoding::log_fmt ? 5 : 4;
inline constexpr std::uint32_t kLogfmtExtension =
    kRowUnit / 2 - kBaseWords<CombineEncoding::log_fmt>;

/// The sizes of a row, and where its words are. `kWhole`: it consists of whole pieces, which the
/// code for it takes for granted.
template <CombineEncoding kEncoding, bool kWhole>
struct CombineRow {
  static constexpr std::uint32_t kBase = kBaseWords<kEncoding>;

  std::uint32_t hidden, units, groups, pieces, block_pieces;

  SHOAL_HOST_DEVICE explicit CombineRow(std::int32_t channels)
      : hidden(static_cast<std::uint32_t>(channels)),
        units((hidden + kRowUnit - 1) / kRowUnit),
        groups(static_cast<std::uint32_t>(numeric::group_count(hidden))),
        pieces((hidden + kRowPiece - 1) / kRowPiece),
        block_pieces(static_cast<std::uint32_t>(numeric::logfmt_block_channels(hidden)) /
                     kRowPiece) {}

  SHOAL_HOST_DEVICE bool is_whole() const { return hidden % kRowPiece == 0; }
  SHOAL_HOST_DEVICE std::uint32_t blocks() const {
    return (pieces + block_pieces - 1) / block_pieces;
  }
  __device__ std::uint32_t units_of(std::uint32_t piece) const {
    return kWhole ? 32 : min(32u, units - piece * 32);
  }
  /// Channels of a unit: 16, 8 at the end of some rows, or 0 beyond it.
  __device__ std::uint32_t channels_of(std::uint32_t unit) const {
    if (kWhole) return kRowUnit;
    return unit < units ? min(kRowUnit, hidden - unit * kRowUnit) : 0;
  }
  /// Word 0 of the lane's unit of a piece, in the base and in the extension. In LogFMT-10 the
  /// others follow units_of(piece) words apart, in e4m3 one by one.
  __device__ std::uint32_t base(std::uint32_t piece) const {
    if (kEncoding != CombineEncoding::log_fmt) return (piece * 32 + lane_id()) * kBase;
    return piece * 32 * kBase + lane_id();
  }
  __device__ std::uint32_t extension(std::uint32_t piece) const {
    return group(groups) + piece * 32 * kLogfmtExtension + lane_id();
  }
  __device__ std::uint32_t group(std::uint32_t i) const { return units * kBase + i; }
};

/// The last word that a row of `form` has whatever its values.
__device__ inline std::uint32_t last_word_of(CombineRowForm form, std::int32_t hidden) {
  if (!is_encoded(form)) return static_cast<std::uint32_t>(hidden) / 2 - 1;
  const CombineRow<CombineEncoding::log_fmt, false> row(hidden);
  return row.units * (encoding_of(form) == CombineEncoding::log_fmt
                          ? kBaseWords<CombineEncoding::log_fmt>
                          : kBaseWords<CombineEncoding::fp8>)+row.groups -
         1;
}

/// The 16 channels of a lane, as pairs. Those beyond the end of the row are zero.
struct UnitValues {
  std::uint32_t pairs[kRowUnit / 2];
};

__device__ inline UnitValues load_unit(const uint4* row, std::uint32_t unit, std::uint32_t count) {
  uint4 low{}, high{};
  if (count > 0) low = __ldg(row + 2 * unit);
  if (count == kRowUnit) high = __ldg(row + 2 * unit + 1);
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

/// Pieces of a block at most.
inline constexpr std::uint32_t kMostBlockPieces = 2;

/// The values of a block as a warp holds them: of each piece, the lane's unit and the number of its
/// channels.
struct BlockValues {
  UnitValues units[kMostBlockPieces];
  std::uint32_t count[kMostBlockPieces];
};

/// Loads block `block` of a row of bfloat16 values; zeros without a row. A warp calls.
template <CombineEncoding kEncoding, bool kWhole>
__device__ BlockValues load_block(const CombineRow<kEncoding, kWhole>& row, std::uint32_t block,
                                  const uint4* from) {
  BlockValues values;
#pragma unroll
  for (std::uint32_t p = 0; p < kMostBlockPieces; ++p) {
    const std::uint32_t unit = (block * row.block_pieces + p) * 32 + lane_id();
    values.count[p] = p < row.block_pieces ? row.channels_of(unit) : 0;
    values.units[p] = load_unit(from, unit, from != nullptr ? values.count[p] : 0);
  }
  return values;
}

/// A weighted sum of rows in the channels of a block. A warp adds them up.
struct BlockSum {
  float sums[kMostBlockPieces][2][8] = {};

  __device__ void add(const BlockValues& values, float weight) {
#pragma unroll
    for (std::uint32_t p = 0; p < kMostBlockPieces; ++p)
#pragma unroll
      for (std::uint32_t i = 0; i < kRowUnit; ++i) {
        const std::uint32_t pair = values.units[p].pairs[i / 2];
        float& sum = sums[p][i / 8][i % 8];
        sum = numeric::accumulate(sum, weight,
                                  __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff'0000u));
      }
  }
  /// Rounds the sum to bfloat16. `counts`: BlockValues::count.
  __device__ BlockValues rounded(const std::uint32_t (&counts)[kMostBlockPieces]) const {
    BlockValues values{};
#pragma unroll
    for (std::uint32_t p = 0; p < kMostBlockPieces; ++p) {
      values.count[p] = counts[p];
#pragma unroll
      for (std::uint32_t half = 0; half < 2; ++half) {
        // A weight that is not finite would leave NaNs beyond the end of the row.
        if (8 * half >= counts[p]) continue;
        const uint4 vector = Bfloat16Vector::narrow(sums[p][half]);
        std::uint32_t* const pairs = values.units[p].pairs + 4 * half;
        pairs[0] = vector.x;
        pairs[1] = vector.y;
        pairs[2] = vector.z;
        pairs[3] = vector.w;
      }
    }
    return values;
  }
};

}  // namespace shoal::ep::cuda
