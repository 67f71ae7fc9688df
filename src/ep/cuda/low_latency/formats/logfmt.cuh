// SPDX-License-Identifier: Apache-2.0
// logfmt.cuh: LogFMT-10 rows on the device: their place and order in memory. Values and bits are
// those of numeric/rows.cpp.
//
// A warp handles a piece of 512 channels, 16 a lane, so that 8 lanes share a group and the bits of
// a lane are whole words. Every word has a place that does not depend on which blocks are cast, so
// that no warp waits for another:
//
//   base       of each piece, the first five words of all lanes: all of a piece that is cast
//   groups     the group of each 128 channels, with kLogfmtCast where its block is cast
//   extension  of each piece that stays bfloat16, the other three words of all lanes
//
// Word k of all lanes lies together, so that a warp loads and stores 128 bytes in a row. A row ends
// with whole units: what exceeds it is zero.
#pragma once

#include "ep/cuda/low_latency/device/places.cuh"
#include "ep/numeric/numeric.hpp"

namespace shoal::ep::cuda {

/// Values that share a run of codes and a run of signs; a lane's part of a piece.
inline constexpr std::uint32_t kLogfmtUnit = 16;
inline constexpr std::uint32_t kLogfmtPiece = 32 * kLogfmtUnit;
/// Words of a unit that is cast, and the others of one that stays bfloat16.
inline constexpr std::uint32_t kLogfmtBase = kLogfmtUnit / 16 * 5,
                               kLogfmtExtension = kLogfmtUnit / 2 - kLogfmtBase;
/// Groups of a piece, and lanes of a group.
inline constexpr std::uint32_t kLogfmtPieceGroups = kLogfmtPiece / numeric::kGroupChannels,
                               kLogfmtGroupLanes = numeric::kGroupChannels / kLogfmtUnit;
/// Bit in the word of a group, next to two magnitudes of 15 bits: its block is cast.
inline constexpr std::uint32_t kLogfmtCast = 0x8000;

__device__ inline numeric::LogfmtGroup logfmt_group(std::uint32_t word) {
  numeric::LogfmtGroup group;
  group.largest.bits = static_cast<std::uint16_t>(word & 0x7fffu);
  group.smallest.bits = static_cast<std::uint16_t>(word >> 16);
  return group;
}

/// The sizes of a row, and where its words are. `kWhole`: it consists of whole pieces, which the
/// code for it takes for granted.
template <bool kWhole>
struct LogfmtRow {
  std::uint32_t hidden, units, groups, pieces, block_pieces;

  SHOAL_HOST_DEVICE explicit LogfmtRow(std::int32_t channels)
      : hidden(static_cast<std::uint32_t>(channels)),
        units((hidden + kLogfmtUnit - 1) / kLogfmtUnit),
        groups(static_cast<std::uint32_t>(numeric::group_count(hidden))),
        pieces((hidden + kLogfmtPiece - 1) / kLogfmtPiece),
        block_pieces(static_cast<std::uint32_t>(numeric::logfmt_block_channels(hidden)) /
                     kLogfmtPiece) {}

  SHOAL_HOST_DEVICE bool is_whole() const { return hidden % kLogfmtPiece == 0; }
  SHOAL_HOST_DEVICE std::uint32_t blocks() const {
    return (pieces + block_pieces - 1) / block_pieces;
  }
  __device__ std::uint32_t units_of(std::uint32_t piece) const {
    return kWhole ? 32 : min(32u, units - piece * 32);
  }
  /// Channels of a unit: 16, 8 at the end of some rows, or 0 beyond it.
  __device__ std::uint32_t channels_of(std::uint32_t unit) const {
    if (kWhole) return kLogfmtUnit;
    return unit < units ? min(kLogfmtUnit, hidden - unit * kLogfmtUnit) : 0;
  }
  /// Word 0 of the lane's unit of a piece, in the base and in the extension. The others follow
  /// units_of(piece) words apart.
  __device__ std::uint32_t base(std::uint32_t piece) const {
    return piece * 32 * kLogfmtBase + lane_id();
  }
  __device__ std::uint32_t extension(std::uint32_t piece) const {
    return group(groups) + piece * 32 * kLogfmtExtension + lane_id();
  }
  __device__ std::uint32_t group(std::uint32_t i) const { return units * kLogfmtBase + i; }
};

/// The 10-bit form of 16 values: codes of 9 bits, then signs, least significant bit first.
struct LogfmtBits {
  std::uint32_t words[kLogfmtBase];

  __device__ void put(std::uint32_t code, std::uint32_t i) {
    const std::uint32_t bit = 9 * i, word = bit / 32, shift = bit % 32;
    words[word] |= code << shift;
    if (shift > 23) words[word + 1] |= code >> (32 - shift);
  }
  /// After all codes.
  __device__ void put_signs(std::uint32_t signs) { words[4] |= signs << 16; }
  /// The code in the low bits; what is above it is anything.
  __device__ std::uint32_t code(std::uint32_t i) const {
    const std::uint32_t bit = 9 * i, word = bit / 32, shift = bit % 32;
    return shift > 23 ? __funnelshift_r(words[word], words[word + 1], shift) : words[word] >> shift;
  }
  /// The sign of a value in the highest bit; what is below it is anything.
  __device__ std::uint32_t sign(std::uint32_t i) const { return words[4] << (15 - i); }
};

}  // namespace shoal::ep::cuda
