// SPDX-License-Identifier: Apache-2.0
// Plans of normal-mode kernels: pure functions of the shape, without a GPU. For all rows, a block
// fits into its shared memory and has at least one warp.
// @traits one_thread
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#ifdef SHOAL_WITH_CUDA

#include "ep/cuda/normal/device/plan.hpp"

namespace shoal::ep::cuda {
namespace {

/// Shared memory of a block on sm_90 and sm_100. The kernels also have static arrays: addresses by
/// rank (dispatch.cu, combine.cu).
constexpr std::uint32_t kSharedMemory = 227 << 10;
const NormalLimits kHopper{.shared_bytes = kSharedMemory - kStaticSharedBytes};
const NormalLimits kAmpere{
    .shared_bytes = (163 << 10) - kStaticSharedBytes, .multiprocessors = 108, .bulk_copies = false};

void expect_fits(const NormalPlan& plan, const NormalLimits& limits, std::int32_t blocks,
                 const std::string& what) {
  EXPECT_LE(plan.shared_bytes, limits.shared_bytes) << what;
  EXPECT_GE(plan.warps, 1) << what;
  EXPECT_LE(plan.warps, static_cast<std::int32_t>(kMaxWarps)) << what;
  EXPECT_GE(plan.blocks, 1) << what;
  EXPECT_LE(plan.blocks, limits.multiprocessors) << what << ": blocks wait for each other";
  if (blocks > 0) EXPECT_EQ(plan.blocks, std::min(blocks, limits.multiprocessors)) << what;
  EXPECT_EQ(plan.overlap_launches, limits.overlap_launches) << what;
  if (!limits.bulk_copies) return;
  EXPECT_GE(plan.stages, 2) << what;
  EXPECT_LE(plan.stages, static_cast<std::int32_t>(kMaxStages)) << what;
  EXPECT_GT(plan.stage_bytes, 0U) << what;
}

void expect_dispatch(std::int32_t blocks, std::uint32_t row, std::uint32_t scales,
                     const NormalLimits& limits = kHopper) {
  const NormalPlan plan = plan_dispatch(blocks, row, scales, limits);
  const std::string what =
      "dispatch of rows of " + std::to_string(row) + " + " + std::to_string(scales) + " bytes";
  expect_fits(plan, limits, blocks, what);
  if (!limits.bulk_copies) return;
  EXPECT_GE(plan.stage_bytes, row + scales) << what;
  EXPECT_EQ(plan.stage_bytes % 128, 0U) << what;
  EXPECT_GE(plan.shared_bytes, kBarrierBytes + plan.warps * plan.stages * plan.stage_bytes) << what;
}

void expect_combine(std::int32_t blocks, std::uint32_t row, std::int32_t copies,
                    const NormalLimits& limits = kHopper) {
  const NormalPlan plan = plan_combine(blocks, row, 100, copies, limits);
  const std::string what =
      "combine of " + std::to_string(copies) + " rows of " + std::to_string(row) + " bytes";
  expect_fits(plan, limits, blocks, what);
  EXPECT_GE(plan.segment_chunks, 1U) << what;
  EXPECT_EQ(plan.stage_bytes % 512, 0U)
      << what << ": what a warp adds at a time, and bulk copies need 16";
  if (!limits.bulk_copies) return;
  EXPECT_GE(plan.shared_bytes, kBarrierBytes + static_cast<std::uint64_t>(plan.warps) *
                                                   plan.stages * plan.stage_bytes *
                                                   static_cast<std::uint32_t>(copies))
      << what;
}

TEST(EpCudaPlan, AnyRowFits) {
  const NormalLimits shared_gpu{
      .shared_bytes = kHopper.shared_bytes, .multiprocessors = 3, .overlap_launches = false};
  for (std::uint32_t row = 16; row <= kMaxRowBytes; row += row < 4096 ? 16 : 1008) {
    for (const NormalLimits& limits : {kHopper, kAmpere, shared_gpu}) {
      expect_dispatch(0, row, 0, limits);
      if (row + 512 <= kMaxRowBytes) expect_dispatch(8, row, 512, limits);
      for (const std::int32_t copies : {1, 2, 3, 8, 31, 32})
        expect_combine(static_cast<std::int32_t>(row % 5), row, copies, limits);
    }
    if (::testing::Test::HasFailure()) return;
  }
  expect_dispatch(0, kMaxRowBytes, 0);
  expect_dispatch(1000, kMaxRowBytes - 2048, 2048);
  expect_combine(1000, 128 << 10, 32);
}

/// Blocks that saturate the link: 16 between two GPUs, 8 to 12 between eight. More blocks change
/// nothing; fewer take longer.
TEST(EpCudaPlan, DispatchesSaturateTheLink) {
  const auto blocks = [](std::uint32_t row, std::int32_t ranks) {
    NormalLimits limits = kHopper;
    limits.ranks = ranks;
    return plan_dispatch(0, row, 0, limits).blocks;
  };
  for (const std::uint32_t row : {7168U, 14336U}) EXPECT_EQ(blocks(row, 2), 16) << row;
  EXPECT_EQ(blocks(14336, 1), 16);
  EXPECT_EQ(blocks(14336, 4), 11);
  EXPECT_EQ(blocks(14336, 8), 10);
  EXPECT_EQ(blocks(14336, 64), 9);
  EXPECT_EQ(blocks(7168, 8), 12);
  EXPECT_EQ(blocks(7168, 64), 12);
}

TEST(EpCudaPlan, EnoughBytesAreInFlight) {
  const NormalPlan bf16 = plan_dispatch(0, 7168 * 2, 0, kHopper);
  EXPECT_GE(bf16.warps * bf16.stages, 14) << "too few bytes in flight per block";
  const NormalPlan fp8 = plan_dispatch(0, 7168, 224, kHopper);
  EXPECT_GE(fp8.warps * fp8.stages, 28);
  const NormalPlan combine = plan_combine(0, 7168 * 2, 4096, 8, kHopper);
  EXPECT_GE(combine.warps * combine.stages * static_cast<std::int32_t>(combine.stage_bytes) * 8,
            96 << 10);
}

TEST(EpCudaPlan, ChunksAreAsLongAsMemoryAllows) {
  const auto expect_chunks = [](std::int32_t tokens, std::int32_t copies, std::uint32_t bytes,
                                std::uint32_t count) {
    const NormalPlan plan = plan_combine(0, 7168 * 2, tokens, copies, kHopper);
    EXPECT_EQ(plan.stage_bytes, bytes) << tokens << " tokens, " << copies << " copies";
    EXPECT_EQ(plan.segment_chunks, count) << tokens << " tokens, " << copies << " copies";
  };
  expect_chunks(4096, 2, 2048, 2);
  expect_chunks(128, 2, 2048, 1);  // longer chunks would leave warps idle
  expect_chunks(4096, 4, 1024, 2);
  expect_chunks(4096, 8, 512, 4);
}

// Blocks that copy expert output stay within the SMs of the call and leave some that only fetch.
TEST(EpCudaPlan, StagingSharesTheBlocksOfACombine) {
  for (const StagedOutput staging : {StagedOutput::rows, StagedOutput::sums}) {
    for (const std::int32_t wanted : {0, 1, 2, 3, 12, 24, 64}) {
      const NormalPlan plan = plan_combine(wanted, 7168 * 2, 4096, 2, kHopper, staging);
      EXPECT_GE(plan.staging_blocks, 1) << wanted;
      EXPECT_LE(plan.staging_blocks, plan.blocks) << wanted;
      if (wanted > 0) EXPECT_EQ(plan.blocks, wanted);
      if (wanted > 1) EXPECT_LT(plan.staging_blocks, plan.blocks) << wanted;
      const auto warps = static_cast<std::uint32_t>(plan.warps);
      EXPECT_LE(warps * plan.copy_bytes, plan.shared_bytes) << wanted;
      // A warp copies in two chunks of at least 128 bytes.
      if (staging == StagedOutput::rows) EXPECT_GE(plan.copy_bytes, 256u) << wanted;
    }
  }
  EXPECT_EQ(plan_combine(24, 7168 * 2, 4096, 2, kHopper).staging_blocks, 0);
}

// Copies pass the same queues as what other blocks fetch.
TEST(EpCudaPlan, FetchesLeaveRoomForCopies) {
  for (const std::int32_t blocks : {24, 32, 48, 64, 96}) {
    const auto in_flight = [&](StagedOutput staging) {
      const NormalPlan plan = plan_combine(blocks, 7168 * 2, 4096, 2, kHopper, staging);
      const auto bytes =
          static_cast<std::uint32_t>(plan.warps * plan.stages) * plan.stage_bytes * 2;
      return static_cast<std::uint64_t>(plan.blocks - plan.staging_blocks) * bytes;
    };
    EXPECT_LE(in_flight(StagedOutput::rows), 3200u << 10) << blocks;
    EXPECT_GE(in_flight(StagedOutput::rows), 1500u << 10) << blocks;
    EXPECT_GT(in_flight(StagedOutput::none), 4000u << 10) << blocks;
  }
}

// A rank that is alone stages nothing. Sums keep the blocks that read the rows.
TEST(EpCudaPlan, NothingIsStagedForTheRankItself) {
  NormalLimits alone = kHopper;
  alone.ranks = 1;
  const auto plan = [&](StagedOutput staging, const NormalLimits& limits) {
    return plan_combine(0, 7168 * 2, 4096, 8, limits, staging);
  };
  for (const StagedOutput staging :
       {StagedOutput::none, StagedOutput::weights, StagedOutput::rows, StagedOutput::sums})
    EXPECT_EQ(plan(staging, alone).staging_blocks, 0);
  EXPECT_EQ(plan(StagedOutput::rows, alone).blocks, plan(StagedOutput::none, alone).blocks);
  EXPECT_EQ(plan(StagedOutput::sums, alone).blocks, plan(StagedOutput::sums, kHopper).blocks);
}

}  // namespace
}  // namespace shoal::ep::cuda

#else

TEST(EpCudaPlan, NeedsCuda) {
  GTEST_SKIP() << "this build has no CUDA";
}

#endif
