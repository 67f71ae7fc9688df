// SPDX-License-Identifier: Apache-2.0
// The pure functions of the expert-major layout: positions of the blocks of experts, the number of
// rows that fit, and the shared memory of a kernel in addition to the table of experts.
// @traits one_thread
#include <gtest/gtest.h>

#include "ep/cuda/layout/device_layout.hpp"
#include "ep/plan/routing.hpp"
#ifdef SHOAL_WITH_CUDA
#include "ep/cuda/normal/device/plan.hpp"
#endif

namespace shoal::ep {
namespace {

detail::Shape shape_of(std::int32_t ranks, std::int32_t experts) {
  GroupOptions options;
  options.max_tokens = 64;
  options.hidden = 64;
  options.top_k = 4;
  options.experts = experts;
  return detail::make_shape(options, ranks);
}

TEST(EpExpertMajorLayout, BlocksStartAtMultiplesBySourceThenToken) {
  const detail::Shape shape = shape_of(2, 4);
  const std::int32_t from0[] = {3, 0, 5, 1}, from1[] = {2, 0, 4, 0};
  const std::int32_t* const counts[] = {from0, from1};
  const detail::ExpertRows second = detail::make_expert_rows(shape, counts, 1, 4);
  EXPECT_EQ(second.first, (std::vector<std::int32_t>{3, 8, 5, 13}));
  EXPECT_EQ(second.end, (std::vector<std::int64_t>{8, 16}));
  EXPECT_EQ(second.blocks, (std::vector<std::int32_t>{0, 12, 16}));
  EXPECT_EQ(second.counts, (std::vector<std::int32_t>{9, 1}));
  const detail::ExpertRows first = detail::make_expert_rows(shape, counts, 0, 1);
  EXPECT_EQ(first.first, (std::vector<std::int32_t>{0, 5, 0, 9}));
  EXPECT_EQ(first.end, (std::vector<std::int64_t>{5, 10}));
  EXPECT_EQ(first.blocks, (std::vector<std::int32_t>{0, 5, 5}));
}

TEST(EpExpertMajorLayout, MostRowsAreThoseOfAllExpertsAndGaps) {
  EXPECT_EQ(shape_of(2, 4).max_expert_major_rows(1),
            2 * 64 * 2);  // two experts per rank, four top-k slots
  EXPECT_EQ(shape_of(2, 16).max_expert_major_rows(8), 2 * 64 * 4 + 8 * 7);
}

TEST(EpExpertMajorLayout, AsManyRowsAsFitAndNotOneMore) {
  const auto total = [](std::int64_t rows) {
    return detail::RegionLayout(static_cast<std::uint64_t>(rows), 7168,
                                detail::SideRecord(224, 1).bytes)
        .total;
  };
  for (const std::int64_t rows : {1, 17, 1000, 32768}) {
    EXPECT_GE(detail::rows_that_fit(1 << 20, total(rows), total), rows);
    const std::int64_t fit = detail::rows_that_fit(1 << 20, total(rows), total);
    EXPECT_LE(total(fit), total(rows));
    EXPECT_GT(total(fit + 1), total(rows));
    EXPECT_EQ(detail::rows_that_fit(rows - 1, total(rows), total), rows - 1);
  }
  EXPECT_EQ(detail::rows_that_fit(100, 0, total), 0);
}

#ifdef SHOAL_WITH_CUDA
TEST(EpExpertMajorPlan, TheTableFitsAfterTheStages) {
  for (const bool bulk : {true, false}) {
    const cuda::NormalLimits limits{.shared_bytes = 224 << 10, .bulk_copies = bulk};
    for (const std::uint32_t experts : {1U, 256U, 1024U, 8192U})
      for (const std::uint32_t row : {16U, 7168U, 14336U, 65536U, 90000U / 16 * 16}) {
        const std::uint32_t table = experts * 4;
        const cuda::NormalPlan plan = cuda::plan_dispatch(0, row, 224, limits, table);
        if (!cuda::fits_with_table(row, 224, limits, table)) continue;
        EXPECT_LE(plan.shared_bytes, limits.shared_bytes) << experts << ", " << row;
        EXPECT_LE(plan.table_offset + table, plan.shared_bytes);
        EXPECT_EQ(plan.table_offset % 16, 0U);
        if (bulk)
          EXPECT_GE(plan.table_offset,
                    cuda::kBarrierBytes +
                        static_cast<std::uint32_t>(plan.warps * plan.stages) * plan.stage_bytes);
      }
    EXPECT_TRUE(cuda::fits_with_table(14336, 0, limits, 1024 * 4));
    EXPECT_FALSE(cuda::fits_with_table(14336, 0, limits, 65536 * 4));
  }
}
#endif

}  // namespace
}  // namespace shoal::ep
