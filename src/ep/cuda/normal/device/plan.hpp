// SPDX-License-Identifier: Apache-2.0
// plan.hpp: how many blocks, warps and stages the kernels of normal mode are launched with, as pure
// functions of the shape. The figures behind them are in docs/decisions/combine-pulls.md and
// staged-expert-output.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::ep::cuda {

/// Bounds of a plan: a dispatch has the addresses of its rows in static shared memory for at most
/// so many warps and stages.
inline constexpr std::uint32_t kMaxWarps = 16, kMaxStages = 8;
/// Bytes of a row that a warp adds at a time. Chunks are multiples of it.
inline constexpr std::uint32_t kCombineStep = 512;
/// Units of 16 channels that a lane adds at a time where rows are encoded.
inline constexpr std::uint32_t kEncodedParts = 4;
/// Barriers lie before the stages: one a warp and stage.
inline constexpr std::uint32_t kBarrierBytes = kMaxWarps * kMaxStages * 8;
/// Static shared memory of a kernel, at most.
inline constexpr std::uint32_t kStaticSharedBytes = 4 << 10;
/// The longest row, scales included, of which two fit into shared memory.
inline constexpr std::uint32_t kMaxRowBytes = 96 << 10;

/// Launch configuration of a kernel.
struct NormalPlan {
  std::int32_t blocks = 0, warps = 0, stages = 0;
  std::uint32_t table_offset = 0;  ///< in shared memory, after the stages
  std::uint32_t stage_bytes = 0, shared_bytes = 0, segment_chunks = 0;
  bool overlap_launches = false;    ///< the kernel may be set up while the one before it ends
  std::int32_t staging_blocks = 0;  ///< of `blocks`: those of a combine that stage first
  std::uint32_t copy_bytes = 0;     ///< of shared memory, for each warp that stages copies
};

/// Data that a combine copies to the staging area (combine_staging.cuh).
enum class StagedOutput : std::uint8_t { none, weights, rows, sums };

/// Limits of a plan.
struct NormalLimits {
  std::uint32_t shared_bytes = 224 << 10;  ///< dynamic shared memory of a block
  /// For one rank: blocks wait for each other and must all be resident.
  std::int32_t multiprocessors = 132;
  std::int32_t ranks = 8;   ///< of the group
  bool bulk_copies = true;  ///< sm_90 and later
  /// Not where ranks share a GPU: kernels that are set up early would take the room of others.
  bool overlap_launches = true;
};

/// The plan of a dispatch. `blocks` of 0 is the number that measured best. `table_bytes` of shared
/// memory are kept for the caller, at NormalPlan::table_offset. `sent_bytes`: of a row, if the
/// kernel encodes those of `row_bytes`; 0: it does not.
NormalPlan plan_dispatch(std::int32_t blocks, std::uint32_t row_bytes, std::uint32_t scale_bytes,
                         const NormalLimits& limits, std::uint32_t table_bytes = 0,
                         std::uint32_t sent_bytes = 0);
/// True if a table leaves room for the two rows that a dispatch needs.
bool fits_with_table(std::uint32_t row_bytes, std::uint32_t scale_bytes, const NormalLimits& limits,
                     std::uint64_t table_bytes);

/// The plan of a combine of so many tokens, each the sum of at most `copies_per_token` rows.
NormalPlan plan_combine(std::int32_t blocks, std::uint32_t row_bytes, std::int32_t tokens,
                        std::int32_t copies_per_token, const NormalLimits& limits,
                        StagedOutput staging = StagedOutput::none);
/// The plan of a combine whose sums load rows directly, not through shared memory.
NormalPlan plan_direct_combine(std::int32_t blocks, const NormalLimits& limits,
                               StagedOutput staging);
/// The plan of a combine of encoded rows.
NormalPlan plan_encoded_combine(std::int32_t blocks, const NormalLimits& limits);

}  // namespace shoal::ep::cuda
