// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/normal/device/plan.hpp"

#include <algorithm>

#include "ep/cuda/layout/device_layout.hpp"

namespace shoal::ep::cuda {
namespace {

/// Warps of a block without bulk copies, where registers hold the rows.
constexpr std::int32_t kWithoutBulkCopies = 16;

/// Blocks in addition to those that fetch. Copies take a fraction of the time of the link; sums
/// read several rows for each that they write, also for this rank itself.
std::int32_t extra_blocks(StagedOutput staging, std::int32_t ranks) {
  if (staging == StagedOutput::sums) return 80;
  return staging == StagedOutput::rows && ranks > 1 ? 16 : 0;
}

/// Blocks that stage before they fetch. What a rank sends to itself is not staged. Copies compete
/// with fetches that fill the link. A small launch uses more than a third of its blocks to stage:
/// copies that end early leave these blocks for fetches.
std::int32_t staging_blocks(StagedOutput staging, std::int32_t blocks, std::int32_t ranks) {
  if (ranks == 1) return 0;
  switch (staging) {
    case StagedOutput::none:
      return 0;
    case StagedOutput::weights:
      return std::max(1, blocks / 3);
    case StagedOutput::rows:
      return std::max({1, blocks / 3, std::min(16, blocks * 5 / 12)});
    case StagedOutput::sums:
      return std::max(1, blocks * 5 / 12);
  }
  return 0;
}

/// Bytes that a block may have in flight while others copy. Fetches beyond what the link needs wait
/// in queues that the copies pass too, the more so the more blocks fetch. Two H200, us: 14 blocks
/// with 2.7 MB 209, with 1.4 MB 234; 32 blocks with 3.1 MB 216, with 1.6 MB 204 (112 combines,
/// commit 44253428; docs/decisions/staged-expert-output.md).
std::uint32_t in_flight_during_copies(std::int32_t fetching_blocks) {
  constexpr std::uint32_t kOfFew = 3200 << 10, kOfMany = 2100 << 10, kLeast = 48 << 10;
  constexpr std::int32_t kMany = 24;  // blocks
  return std::max(kLeast, (fetching_blocks < kMany ? kOfFew : kOfMany) /
                              static_cast<std::uint32_t>(std::max(1, fetching_blocks)));
}

/// Warps of a block that sums expert output. Where many blocks do, fewer warps with longer chunks
/// are faster. 24 blocks have not been compared.
std::int32_t warps_for_sums(std::int32_t blocks) {
  constexpr std::int32_t kMany = 80;  // blocks
  return blocks < kMany ? 12 : 8;
}

/// The fewest blocks of a dispatch that saturate the link. Eight SMs send as many bytes as the link
/// carries; they store the rows of this rank too, which do not use the link. Short rows need more
/// blocks on eight GPUs. Measured on two and on eight (gpu-normal*.json in docs/data).
std::int32_t saturating_blocks(std::uint32_t row_bytes, std::int32_t ranks) {
  constexpr std::int32_t kOfTheLink = 8, kLeastForShortRows = 12;
  constexpr std::uint32_t kLongRow = 10 << 10;  // bytes
  const std::int32_t remote = std::max(1, ranks - 1), all = std::max(2, ranks);
  const std::int32_t blocks = (kOfTheLink * all + remote - 1) / remote;
  return row_bytes > kLongRow ? blocks : std::max(blocks, kLeastForShortRows);
}

/// The fewest blocks that encode rows as fast as the link takes them, where `saturating` send rows
/// as they are. Two H200, 4096 tokens of 7168 channels, us with 16, 32, 64, 96 and 132 blocks: FP8
/// 199, 115, 100, 101, 102; NVFP4 340, 179, 100, 77, 69; FP8 that comes quantized 97.
std::int32_t encoding_blocks(std::int32_t saturating, std::uint32_t row_bytes,
                             std::uint32_t sent_bytes) {
  const bool four_bits = sent_bytes * 4 <= row_bytes;
  return saturating * (four_bits ? 6 : 4);
}

std::int32_t chosen_blocks(std::int32_t wanted, std::int32_t best, const NormalLimits& limits) {
  return std::clamp(wanted > 0 ? wanted : best, 1, std::max(1, limits.multiprocessors));
}

}  // namespace

bool fits_with_table(std::uint32_t row_bytes, std::uint32_t scale_bytes, const NormalLimits& limits,
                     std::uint64_t table_bytes) {
  const std::uint64_t rows =
      limits.bulk_copies ? kBarrierBytes + 2 * detail::align_up(row_bytes + scale_bytes, 128) : 0;
  return rows + table_bytes <= limits.shared_bytes;
}

NormalPlan plan_dispatch(std::int32_t blocks, std::uint32_t row_bytes, std::uint32_t scale_bytes,
                         const NormalLimits& limits, std::uint32_t table_bytes,
                         std::uint32_t sent_bytes) {
  NormalPlan plan;
  plan.overlap_launches = limits.overlap_launches;
  std::int32_t best = saturating_blocks(row_bytes, limits.ranks);
  if (sent_bytes != 0) best = encoding_blocks(best, row_bytes, sent_bytes);
  plan.blocks = chosen_blocks(blocks, best, limits);
  if (!limits.bulk_copies) {
    plan.warps = kWithoutBulkCopies;
    plan.stages = 1;
    plan.shared_bytes = table_bytes;
    return plan;
  }
  plan.stage_bytes = static_cast<std::uint32_t>(detail::align_up(row_bytes + scale_bytes, 128));
  const auto room = static_cast<std::int32_t>((limits.shared_bytes - kBarrierBytes - table_bytes) /
                                              plan.stage_bytes);
  // Two rows in flight a warp, and as many warps as shared memory has room for.
  plan.stages = 2;
  plan.warps = std::clamp(room / plan.stages, 1, static_cast<std::int32_t>(kMaxWarps));
  plan.table_offset =
      kBarrierBytes + static_cast<std::uint32_t>(plan.warps * plan.stages) * plan.stage_bytes;
  plan.shared_bytes = plan.table_offset + table_bytes;
  return plan;
}

NormalPlan plan_direct_combine(std::int32_t blocks, const NormalLimits& limits,
                               StagedOutput staging) {
  NormalPlan plan;
  plan.overlap_launches = limits.overlap_launches;
  plan.blocks = chosen_blocks(blocks, 16 + extra_blocks(staging, limits.ranks), limits);
  plan.staging_blocks = staging_blocks(staging, plan.blocks, limits.ranks);
  plan.warps = kWithoutBulkCopies;
  plan.stages = 1;
  plan.stage_bytes = kCombineStep;
  plan.segment_chunks = 1;
  if (!limits.bulk_copies || staging != StagedOutput::rows) return plan;
  // Copies to the staging area pass through shared memory.
  const std::uint32_t room = limits.shared_bytes - 3 * kBarrierBytes;
  plan.copy_bytes = room / static_cast<std::uint32_t>(plan.warps) / 128 * 128;
  plan.shared_bytes = 3 * kBarrierBytes + static_cast<std::uint32_t>(plan.warps) * plan.copy_bytes;
  return plan;
}

NormalPlan plan_combine(std::int32_t blocks, std::uint32_t row_bytes, std::int32_t tokens,
                        std::int32_t copies_per_token, const NormalLimits& limits,
                        StagedOutput staging) {
  if (!limits.bulk_copies) return plan_direct_combine(blocks, limits, staging);
  // Segments are long enough to keep a warp's pipeline full and short enough for warps to end
  // together: at least two chunks where a warp has kManyBytes or more.
  constexpr std::uint32_t kSegmentBytes = 2 << 10, kManyBytes = 32 << 10;
  NormalPlan plan;
  plan.overlap_launches = limits.overlap_launches;
  plan.blocks = chosen_blocks(blocks, 16 + extra_blocks(staging, limits.ranks), limits);
  plan.staging_blocks = staging_blocks(staging, plan.blocks, limits.ranks);
  const auto copies = static_cast<std::uint32_t>(copies_per_token);
  // Barriers, and a uint4 for each stage.
  const std::uint32_t room = limits.shared_bytes - 3 * kBarrierBytes;
  // Sums of many rows do best with fewer warps and stages, and longer chunks in them.
  const bool sums = staging == StagedOutput::sums;
  plan.stages = sums ? 2 : 3;
  plan.warps = sums ? warps_for_sums(plan.blocks) : static_cast<std::int32_t>(kMaxWarps);
  // Chunks are multiples of what a warp adds at a time. Longer chunks need fewer instructions a
  // byte, so they are as long as memory allows, but no longer than a segment.
  constexpr std::uint32_t kStep = kCombineStep;
  std::uint32_t chunk =
      std::min(kSegmentBytes, static_cast<std::uint32_t>(detail::align_up(row_bytes, kStep)));
  const auto bytes = [&] {
    return static_cast<std::uint32_t>(plan.warps * plan.stages) * chunk * copies;
  };
  while (bytes() > room && chunk > kStep) chunk -= kStep;
  while (bytes() > room && plan.warps > 1) --plan.warps;
  if (staging == StagedOutput::rows && plan.staging_blocks != 0) {
    const std::uint32_t enough = in_flight_during_copies(plan.blocks - plan.staging_blocks);
    while (bytes() > enough && chunk > kStep) chunk -= kStep;
    plan.copy_bytes = room / static_cast<std::uint32_t>(plan.warps) / 128 * 128;
  }
  plan.stage_bytes = chunk;
  const std::int64_t bytes_of_warp = std::int64_t{tokens} * row_bytes / (plan.blocks * plan.warps);
  plan.segment_chunks = std::max(kSegmentBytes / chunk, bytes_of_warp >= kManyBytes ? 2u : 1u);
  plan.shared_bytes = 3 * kBarrierBytes +
                      std::max(bytes(), static_cast<std::uint32_t>(plan.warps) * plan.copy_bytes);
  return plan;
}

NormalPlan plan_encoded_combine(std::int32_t blocks, const NormalLimits& limits) {
  // Rows pass through registers. Four times the SMs of bulk copies, as code without bulk copies
  // needs them (docs/decisions/combine-pulls.md); not measured for encoded rows.
  constexpr std::int32_t kBest = 64;
  NormalPlan plan;
  plan.overlap_launches = limits.overlap_launches;
  plan.blocks = chosen_blocks(blocks, kBest, limits);
  plan.warps = kWithoutBulkCopies;
  plan.stages = 1;
  plan.stage_bytes = 2 * kCombineStep;  // of the result: 16 channels a lane
  plan.segment_chunks = kEncodedParts;
  return plan;
}

}  // namespace shoal::ep::cuda
