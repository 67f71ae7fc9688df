// SPDX-License-Identifier: Apache-2.0
// logfmt.cuh: LogFMT-10 rows on the device, bit-identical to those of numeric/rows.cpp.
//
// A block of threads handles a row a window at a time, and each of its warps a piece of 512
// channels: 16 a lane, so that 8 lanes share a group and the bits of a lane are whole words. The
// castable groups of a window decide where its pieces lie, so warps exchange one bit per group.
#pragma once

#include "ep/cuda/low_latency/places.cuh"
#include "ep/numeric/numeric.hpp"

namespace shoal::ep::cuda {

/// Values that share a run of codes and a run of signs; a lane's part of a piece.
inline constexpr std::uint32_t kLogfmtUnit = 16;
inline constexpr std::uint32_t kLogfmtPiece = 32 * kLogfmtUnit;
/// Words of a piece that is cast, and of one that stays bfloat16.
inline constexpr std::uint32_t kLogfmtCastWords = kLogfmtPiece / 16 * 5,
                               kLogfmtRawWords = kLogfmtPiece / 2;
/// Groups of a piece, and lanes of a group.
inline constexpr std::uint32_t kLogfmtPieceGroups = kLogfmtPiece / numeric::kGroupChannels,
                               kLogfmtGroupLanes = numeric::kGroupChannels / kLogfmtUnit;
/// Pieces of a window, one a warp. Windows consist of whole LogFMT blocks, which have one or two
/// pieces; rows of 7168 channels have one window.
inline constexpr std::uint32_t kLogfmtWarps = 14;
inline constexpr std::uint32_t kLogfmtWindow = kLogfmtWarps * kLogfmtPiece,
                               kLogfmtWindowGroups = kLogfmtWarps * kLogfmtPieceGroups;
static_assert(kLogfmtWindow % 1024 == 0 && kLogfmtWindowGroups < 64);

/// Where word `w` of a piece that stays bfloat16 lies in shared memory, so that lanes with eight
/// consecutive words each use different banks.
inline constexpr std::uint32_t kLogfmtStagedWords = kLogfmtRawWords + kLogfmtRawWords / 8;
__device__ inline std::uint32_t staged_raw_word(std::uint32_t w) {
  return w + w / 8;
}

/// Words are loaded past the first-level cache, which does not track what other GPUs write.
__device__ inline std::uint32_t load_word(const void* at) {
  return __ldcg(static_cast<const unsigned int*>(at));
}

__device__ inline numeric::LogfmtGroup logfmt_group(std::uint32_t word) {
  numeric::LogfmtGroup group;
  group.largest.bits = static_cast<std::uint16_t>(word & 0xffffu);
  group.smallest.bits = static_cast<std::uint16_t>(word >> 16);
  return group;
}

/// The sizes of a row.
struct LogfmtRow {
  std::uint32_t hidden, groups, block_pieces;

  __device__ explicit LogfmtRow(std::uint32_t channels)
      : hidden(channels),
        groups(static_cast<std::uint32_t>(numeric::group_count(channels))),
        block_pieces(static_cast<std::uint32_t>(numeric::logfmt_block_channels(channels)) /
                     kLogfmtPiece) {}

  /// Of `most` channels from `first` on, how many the row has.
  __device__ std::uint32_t channels_from(std::uint32_t first, std::uint32_t most) const {
    return first < hidden ? min(most, hidden - first) : 0;
  }
};

/// Where the pieces of a window lie.
class LogfmtPieces {
 public:
  /// `castable` has a bit for each group of the window, set for those beyond the end of the row.
  __device__ LogfmtPieces(const LogfmtRow& row, std::uint64_t castable)
      : block_pieces_(row.block_pieces), cast_(castable) {
    cast_ &= cast_ >> 1;
    cast_ &= cast_ >> 2;
    if (block_pieces_ == 2) cast_ &= cast_ >> 4;
    cast_ &= block_pieces_ == 2 ? 0x0101'0101'0101'0101u : 0x1111'1111'1111'1111u;
  }

  __device__ bool is_cast(std::uint32_t piece) const {
    return (cast_ >> bit_of(first_of(piece)) & 1) != 0;
  }
  /// Words before a piece in the window; for kLogfmtWarps the words of a whole window.
  __device__ std::uint32_t start(std::uint32_t piece) const {
    const std::uint32_t first = first_of(piece);
    const auto cast =
        static_cast<std::uint32_t>(__popcll(cast_ & ((std::uint64_t{1} << bit_of(first)) - 1)));
    return first * kLogfmtRawWords - cast * block_pieces_ * (kLogfmtRawWords - kLogfmtCastWords) +
           (piece - first) * (is_cast(piece) ? kLogfmtCastWords : kLogfmtRawWords);
  }

 private:
  /// The first piece of the block of a piece; the bit of the block in cast_.
  __device__ std::uint32_t first_of(std::uint32_t piece) const {
    return piece & ~(block_pieces_ - 1);
  }
  __device__ static std::uint32_t bit_of(std::uint32_t first) { return first * kLogfmtPieceGroups; }

  const std::uint32_t block_pieces_;
  std::uint64_t cast_;  ///< a bit for each block that is cast, where its first group is
};

/// The 10-bit form of 16 values: codes of 9 bits, then signs, least significant bit first. A tail
/// of 8 values has the same form in 10 bytes.
struct LogfmtBits {
  std::uint32_t words[5];

  __device__ void put(std::uint32_t code, std::uint32_t i) {
    const std::uint32_t bit = 9 * i, word = bit / 32, shift = bit % 32;
    words[word] |= code << shift;
    if (shift > 23) words[word + 1] |= code >> (32 - shift);
  }
  /// After all codes. A tail may have any codes after its eighth.
  __device__ void put_signs(std::uint32_t signs, std::uint32_t count) {
    words[4] |= signs << 16;
    if (count < kLogfmtUnit) words[2] = (words[2] & 0xffu) | (signs & 0xffu) << 8;
  }
  __device__ std::uint32_t code(std::uint32_t i) const {
    const std::uint32_t bit = 9 * i, word = bit / 32, shift = bit % 32;
    const std::uint32_t code =
        shift > 23 ? __funnelshift_r(words[word], words[word + 1], shift) : words[word] >> shift;
    return code & 0x1ffu;
  }
  __device__ std::uint32_t signs(std::uint32_t count) const {
    return count < kLogfmtUnit ? words[2] >> 8 & 0xffu : words[4] >> 16;
  }
};

/// Words that `channels` values take in 10 bits.
__device__ inline std::uint32_t logfmt_words(std::uint32_t channels) {
  return (static_cast<std::uint32_t>(numeric::logfmt_bytes(channels)) + 3) / 4;
}

}  // namespace shoal::ep::cuda
