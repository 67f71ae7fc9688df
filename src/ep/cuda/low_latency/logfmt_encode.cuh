// SPDX-License-Identifier: Apache-2.0
// logfmt_encode.cuh: a block of threads encodes rows in LogFMT-10 and stores them at another rank.
//
// A value costs about 30 instructions, most of them its logarithm; the scale of a group costs more
// than 100 and is computed once, by one lane for the whole block. Rows stay in registers between
// the two passes. Stores are 128 consecutive bytes per warp.
#pragma once

#include "ep/cuda/device/ptx.cuh"
#include "ep/cuda/low_latency/logfmt.cuh"

namespace shoal::ep::cuda {

/// Threads that encode.
inline constexpr std::uint32_t kLogfmtThreads = kLogfmtWarps * 32;

/// What they share.
struct LogfmtEncoding {
  std::uint32_t groups[kLogfmtWindowGroups];  ///< LogfmtGroup, as it travels
  numeric::LogfmtScale scales[kLogfmtWindowGroups];
  std::uint32_t castable[2];  ///< bits of the groups
  std::uint32_t words[kLogfmtWarps][kLogfmtStagedWords];
};

/// The group of which this lane has 16 values, eight of them twice, or, with `count` 0, none. All
/// lanes get it.
__device__ inline std::uint32_t summarize_group(const std::uint32_t (&values)[8],
                                                std::uint32_t count) {
  constexpr std::uint32_t kMagnitudes = 0x7fff'7fffu, kInfinities = 0x7f80'7f80u;
  std::uint32_t most = 0, least = kInfinities;
#pragma unroll
  for (const std::uint32_t pair : values) {
    most = __vmaxu2(most, pair & kMagnitudes);
    least = __vminu2(least, pair & kMagnitudes);
  }
  if (count == 0) most = 0, least = kInfinities;
  // The largest in the lower half, the complement of the smallest in the upper half.
  std::uint32_t both =
      max(most & 0xffffu, most >> 16) | (~min(least & 0xffffu, least >> 16) & 0xffffu) << 16;
#pragma unroll
  for (std::uint32_t distance = kLogfmtGroupLanes / 2; distance > 0; distance /= 2)
    both = __vmaxu2(both, __shfl_xor_sync(kWarp, both, distance));
  return both ^ 0xffff'0000u;
}

/// `kNormal`: the group allows the shorter functions (numeric/logfmt.hpp).
template <bool kNormal>
__device__ LogfmtBits encode_unit(const std::uint32_t (&values)[8],
                                  const numeric::LogfmtScale& scale, std::uint32_t count) {
  LogfmtBits bits{};
  std::uint32_t signs = 0;
#pragma unroll
  for (std::uint32_t i = 0; i < kLogfmtUnit; ++i) {
    const std::uint32_t word = i % 2 == 0 ? values[i / 2] << 16 : values[i / 2];
    const float magnitude = __uint_as_float(word & 0x7fff'0000u);
    bits.put(kNormal ? numeric::encode_logfmt_normal(magnitude, scale)
                     : numeric::encode_logfmt(magnitude, scale),
             i);
  }
  // The signs of pair i first go to bits 2 i + 1 and 2 i + 17.
#pragma unroll
  for (std::uint32_t i = 0; i < kLogfmtUnit / 2; ++i)
    signs |= (values[i] & 0x8000'8000u) >> (14 - 2 * i);
  bits.put_signs((signs >> 1 & 0x5555u) | (signs >> 16 & 0xaaaau), count);
  return bits;
}

/// Two warps: the scales and castable bits of a window's groups; stores the groups.
__device__ inline void prepare_groups(const LogfmtRow& row, std::uint32_t first_group,
                                      std::uint32_t* out, LogfmtEncoding& shared) {
  const std::uint32_t group = threadIdx.x;
  const bool exists = group < kLogfmtWindowGroups && first_group + group < row.groups;
  bool castable = true;
  if (exists) {
    const std::uint32_t word = shared.groups[group];
    castable = numeric::logfmt_castable(logfmt_group(word));
    shared.scales[group] = numeric::logfmt_scale(logfmt_group(word));
    out[first_group + group] = word;
  }
  const std::uint32_t bits = __ballot_sync(kWarp, castable);
  if (lane_id() == 0) shared.castable[group / 32] = bits;
}

/// Barrier of the threads that encode.
__device__ inline void encode_barrier() {
  ptx::bar_sync<15>(kLogfmtThreads);
}

/// Encodes a row of `channels` bfloat16 values and stores it to `out`. The first kLogfmtThreads
/// threads of a block call. Parts of words beyond the end of the row are 0.
__device__ inline void send_log_fmt_row(const uint4* from, std::uint32_t channels,
                                        std::uint32_t* out, LogfmtEncoding& shared) {
  const LogfmtRow row(channels);
  const std::uint32_t me = lane_id(), piece = threadIdx.x / 32;
  std::uint32_t window = row.groups;  // where it starts in the row: after the groups
  for (std::uint32_t start = 0; start < row.hidden; start += kLogfmtWindow) {
    const std::uint32_t first = start + threadIdx.x * kLogfmtUnit,
                        count = row.channels_from(first, kLogfmtUnit);
    uint4 low{}, high{};
    if (count > 0) high = low = __ldg(from + first / 8);
    if (count == kLogfmtUnit) high = __ldg(from + first / 8 + 1);
    const std::uint32_t values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const std::uint32_t group = summarize_group(values, count);
    if (me % kLogfmtGroupLanes == 0) shared.groups[threadIdx.x / kLogfmtGroupLanes] = group;
    encode_barrier();
    if (threadIdx.x < 64) prepare_groups(row, start / numeric::kGroupChannels, out, shared);
    encode_barrier();
    const LogfmtPieces pieces(row, shared.castable[0] | std::uint64_t{shared.castable[1]} << 32);
    std::uint32_t* const to = out + window + pieces.start(piece);
    window += pieces.start(kLogfmtWarps);
    const std::uint32_t here = row.channels_from(start + piece * kLogfmtPiece, kLogfmtPiece);
    if (here == 0) continue;
    if (!pieces.is_cast(piece)) {
      __syncwarp();  // words of the row before have been read
#pragma unroll
      for (std::uint32_t i = 0; i < kLogfmtUnit / 2; ++i)
        if (2 * i < count)
          shared.words[piece][staged_raw_word(me * (kLogfmtUnit / 2) + i)] = values[i];
      __syncwarp();
#pragma unroll
      for (std::uint32_t i = 0; i < kLogfmtUnit / 2; ++i) {
        const std::uint32_t word = me + 32 * i;
        if (word < here / 2) to[word] = shared.words[piece][staged_raw_word(word)];
      }
      continue;
    }
    const numeric::LogfmtScale scale = shared.scales[threadIdx.x / kLogfmtGroupLanes];
    const bool normal =
        __all_sync(kWarp, count == 0 || scale.log_min >= numeric::kLogfmtNormal) != 0;
    const LogfmtBits bits =
        normal ? encode_unit<true>(values, scale, count) : encode_unit<false>(values, scale, count);
    __syncwarp();
#pragma unroll
    for (std::uint32_t i = 0; i < 5; ++i) shared.words[piece][me * 5 + i] = bits.words[i];
    __syncwarp();
#pragma unroll
    for (std::uint32_t i = 0; i < 5; ++i) {
      const std::uint32_t word = me + 32 * i;
      if (word < logfmt_words(here)) to[word] = shared.words[piece][word];
    }
  }
}

}  // namespace shoal::ep::cuda
