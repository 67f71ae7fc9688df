// SPDX-License-Identifier: Apache-2.0
// logfmt.cuh: LogFMT-10 rows on the device, bit-identical to those of numeric/rows.cpp.
#pragma once

#include "ep/numeric/numeric.hpp"

namespace shoal::ep::cuda {

/// Values that share a run of codes and a run of signs.
inline constexpr std::uint32_t kLogfmtUnit = 16;

/// Words are loaded past the first-level cache, which does not track what other GPUs write.
__device__ inline std::uint32_t load_word(const void* at) {
  return __ldcg(static_cast<const unsigned int*>(at));
}

/// Offsets of the parts of a row, computed from its length.
struct LogfmtRow {
  std::uint32_t hidden, groups, block_channels, blocks;

  __device__ explicit LogfmtRow(std::uint32_t channels)
      : hidden(channels),
        groups(static_cast<std::uint32_t>(numeric::group_count(channels))),
        block_channels(static_cast<std::uint32_t>(numeric::logfmt_block_channels(channels))),
        blocks((channels + block_channels - 1) / block_channels) {}

  __device__ std::uint32_t meta_bytes() const { return groups * sizeof(numeric::LogfmtGroup); }
  __device__ std::uint32_t channels_of(std::uint32_t block) const {
    return min(block_channels, hidden - block * block_channels);
  }
  __device__ std::uint32_t bytes_of(std::uint32_t block, bool cast) const {
    return cast ? static_cast<std::uint32_t>(numeric::logfmt_bytes(channels_of(block)))
                : channels_of(block) * 2;
  }
};

/// The 10-bit form of up to 16 values (a tail has 8): codes of 9 bits, then signs, least
/// significant bit first.
struct LogfmtBits {
  std::uint32_t words[5];

  __device__ void pack(const std::uint32_t (&codes)[kLogfmtUnit], std::uint32_t signs,
                       std::uint32_t count) {
#pragma unroll
    for (std::uint32_t& word : words) word = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kLogfmtUnit; ++i)
      if (i < count) put(codes[i], 9 * i);
    if (count == kLogfmtUnit)
      words[4] |= signs << 16;
    else
      words[2] |= signs << 8;  // 8 codes are 72 bits
  }
  __device__ std::uint32_t code(std::uint32_t i) const {
    const std::uint32_t bit = 9 * i, word = bit / 32, shift = bit % 32;
    const std::uint32_t low = words[word] >> shift;
    const std::uint32_t high = shift > 23 ? words[word + 1] << (32 - shift) : 0;
    return (low | high) & 0x1ffu;
  }
  __device__ std::uint32_t signs(std::uint32_t count) const {
    return count == kLogfmtUnit ? words[4] >> 16 : words[2] >> 8 & 0xffu;
  }

 private:
  __device__ void put(std::uint32_t code, std::uint32_t bit) {
    const std::uint32_t word = bit / 32, shift = bit % 32;
    words[word] |= code << shift;
    if (shift > 23) words[word + 1] |= code >> (32 - shift);
  }
};

}  // namespace shoal::ep::cuda
