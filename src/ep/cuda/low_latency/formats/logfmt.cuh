// SPDX-License-Identifier: Apache-2.0
// logfmt.cuh: LogFMT-10 on the device: the words of a group and of 16 values. Values and bits are
// those of numeric/rows.cpp, their places in a row those of combine_row.cuh.
#pragma once

#include "ep/cuda/low_latency/formats/combine_row.cuh"

namespace shoal::ep::cuda {

/// Words of 16 values that are cast.
inline constexpr std::uint32_t kLogfmtBase = kBaseWords<CombineEncoding::log_fmt>;
/// Bit in the word of a group, next to two magnitudes of 15 bits: its block is cast.
inline constexpr std::uint32_t kLogfmtCast = 0x8000;

__device__ inline numeric::LogfmtGroup logfmt_group(std::uint32_t word) {
  numeric::LogfmtGroup group;
  group.largest.bits = static_cast<std::uint16_t>(word & 0x7fffu);
  group.smallest.bits = static_cast<std::uint16_t>(word >> 16);
  return group;
}

template <bool kWhole>
using LogfmtRow = CombineRow<CombineEncoding::log_fmt, kWhole>;

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
