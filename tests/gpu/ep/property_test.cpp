// SPDX-License-Identifier: Apache-2.0
// Normal mode on GPUs with random shapes against the naive references: 1 to 8 ranks, rows of 256 to
// 16384 channels in steps of 16 bytes, top-k 1 to 128, up to 1024 experts and 8192 tokens, skewed
// loads, every kind of row and every option. tests/property/ep_draws_test.cpp checks that the seeds
// cover all of it.
#include <gtest/gtest.h>

#include "checks/ep/draws.hpp"

namespace shoal::test {
namespace {

class EpGpuProperty : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, EpGpuProperty,
                         ::testing::Range<std::uint64_t>(1, kNormalSeeds + 1));

TEST_P(EpGpuProperty, RandomShapesMatchTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  const NormalDraw drawn = draw_normal(GetParam());
  SCOPED_TRACE(drawn.c.describe() + " dtype " + std::string(name_of(drawn.options.dtype)));
  const std::size_t bytes = size_hint(drawn.options, drawn.c.ranks, DeviceKind::cuda).total();
  run_threads(drawn.c.ranks, gpu_settings((bytes >> 20) + 16), [&](World& world) {
    GpuGroup group(world, drawn.options);
    std::uint64_t round = 0;
    for (const GpuCall& call : drawn.calls) {
      EpCase now = drawn.c;
      now.seed += 1000 * round++;
      GpuRound(group, now, call).run();
    }
  });
}

/// One large operation; payload is compared in samples, everything else in full.
void run_large(const EpCase& c, const GpuCall& call) {
  SCOPED_TRACE(c.describe());
  ep::GroupOptions options = options_for(c);
  options.low_latency_max_tokens = 0;
  options.live_results = 1;
  options.dtype = call.dtype;
  options.combine_staging =
      call.place == OutputPlace::staged || call.combine_quantize != ep::Quantize::none;
  const std::size_t bytes = size_hint(options, c.ranks, DeviceKind::cuda).total();
  run_threads(c.ranks, gpu_settings((bytes >> 20) + 16), [&](World& world) {
    GpuGroup group(world, options);
    GpuRound(group, c, call).run();
  });
}

TEST(EpGpuLarge, DeepSeekV3TrainingShape) {
  SHOAL_SKIP_WITHOUT_GPU();
  run_large({.ranks = 8,
             .experts = 256,
             .top_k = 8,
             .hidden = 7168,
             .max_tokens = 4096,
             .seed = 3,
             .holes = 0},
            {.place = OutputPlace::in_place, .samples = 200});
}

TEST(EpGpuLarge, ManyTokensManyTopkSlotsManyExperts) {
  SHOAL_SKIP_WITHOUT_GPU();
  run_large(
      {.ranks = 8, .experts = 1024, .top_k = 32, .hidden = 1024, .max_tokens = 8192, .seed = 5},
      {.dtype = DataType::float8_e4m3,
       .scales = 8,
       .scale_order = ScaleOrder::columns,
       .samples = 200});
}

TEST(EpGpuLarge, OneHotRank) {
  SHOAL_SKIP_WITHOUT_GPU();
  run_large(
      {.ranks = 4,
       .experts = 64,
       .top_k = 8,
       .hidden = 2048,
       .max_tokens = 8192,
       .seed = 7,
       .load = Load::all_to_one},
      {.dispatch = {.worst_case_rows = 4 * 8192}, .place = OutputPlace::in_place, .samples = 200});
}

}  // namespace
}  // namespace shoal::test
