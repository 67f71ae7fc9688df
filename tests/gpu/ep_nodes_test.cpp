// Groups of tensors in GPU memory whose members lie on several (emulated) nodes: rows go through the host (E2, E3
// between nodes, staged). PEs are threads that share the GPUs there are.
#include <gtest/gtest.h>

#include "support/ep_gpu_low_latency.hpp"

namespace shoal::test {
namespace {

struct Grid {
  std::int32_t ranks, nodes;
};
void PrintTo(const Grid& grid, std::ostream* out) {
  *out << grid.ranks << " ranks on " << grid.nodes << " nodes";
}

EpCase small(const Grid& grid, std::uint64_t seed = 1) {
  return {.ranks = grid.ranks,
          .experts = grid.ranks * 3,
          .top_k = 4,
          .hidden = 512,
          .max_tokens = 40,
          .seed = seed,
          .nodes = grid.nodes};
}

void run_group(const EpCase& c, const std::function<void(GpuGroup&)>& body, DataType widest = DataType::bfloat16) {
  SCOPED_TRACE(c.describe());
  Settings settings = gpu_settings();
  settings.node_size = c.ranks / c.nodes;
  settings.staging_size = std::size_t{1} << 30;
  run_threads(c.ranks, settings, [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.dtype = widest;
    GpuGroup owner(world, options);
    body(owner);
  });
}

class EpGpuNodes : public ::testing::TestWithParam<Grid> {};
INSTANTIATE_TEST_SUITE_P(Grids, EpGpuNodes, ::testing::Values(Grid{2, 2}, Grid{4, 2}, Grid{6, 3}, Grid{8, 2}));

TEST_P(EpGpuNodes, NormalModeMatchesTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(GetParam());
  run_group(c, [&](GpuGroup& owner) {
    GpuRound(owner, c, {}).run();
    GpuRound(owner, c, {.scales = 4, .scale_order = ScaleOrder::columns, .place = AnswerPlace::in_place, .biases = 2})
        .run();
    GpuRound(owner, c, {.int32_topk = true, .place = AnswerPlace::heap, .out = true}).run();
  });
}

TEST_P(EpGpuNodes, RowsOfOtherKinds) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(GetParam(), 2);
  run_group(
      c,
      [&](GpuGroup& owner) {
        GpuRound(owner, c, {.dtype = DataType::float8_e4m3, .scales = 4, .answer = DataType::bfloat16}).run();
        GpuRound(owner, c, {.dtype = DataType::float32, .weights = false, .answer = DataType::float32}).run();
      },
      DataType::float32);
}

TEST_P(EpGpuNodes, LowLatencyModeMatchesTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(GetParam(), 3);
  run_group(c, [&](GpuGroup& owner) {
    for (const GpuLowLatencyCall& call : {GpuLowLatencyCall{}, GpuLowLatencyCall{.zero_copy = true},
                                          GpuLowLatencyCall{.quantize = ep::Quantize::fp8, .out = true},
                                          GpuLowLatencyCall{.quantize = ep::Quantize::fp8_ue8m0, .zero_copy = true},
                                          GpuLowLatencyCall{.reduction = ep::Reduction::exact},
                                          GpuLowLatencyCall{.reduction = ep::Reduction::exact, .log_fmt = true}})
      GpuLowLatencyRound(owner, c, call).run();
  });
}

TEST(EpGpuNodesMode, LowLatencyResultsLieInTwoPlacesInTurn) {  // deep_ep hands them out before they are received
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small({4, 2}, 4);
  run_group(c, [&](GpuGroup& owner) {
    std::vector<ep::LowLatencyReceived> received;
    for (const ep::Quantize quantize : {ep::Quantize::none, ep::Quantize::fp8, ep::Quantize::fp8_ue8m0})
      for (int half = 0; half < 2; ++half) {
        GpuLowLatencyRound round(owner, c, {.quantize = quantize});
        received.push_back(round.send().receive());
        round.check(received.back());
        round.poison(received.back());
      }
    EXPECT_NE(received[0].x.data, received[1].x.data);
    for (std::size_t i = 2; i < received.size(); ++i) {
      EXPECT_EQ(received[i].x.data, received[i - 2].x.data);
      EXPECT_EQ(received[i].counts.data, received[i - 2].counts.data);
      EXPECT_EQ(received[i].source_token.data, received[i - 2].source_token.data);
      EXPECT_EQ(received[i].layout.data, received[i - 2].layout.data);
      if (i >= 4) EXPECT_EQ(received[i].scales.data, received[i - 2].scales.data);
    }
  });
}

TEST(EpGpuNodesMode, WarmUpAndManyRounds) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small({4, 2}, 5);
  run_group(c, [&](GpuGroup& owner) {
    owner.group.warmup();
    for (int i = 0; i < 20; ++i) {
      GpuRound(owner, c, {}).run();
      GpuLowLatencyRound(owner, c, {.zero_copy = i % 2 == 0}).run();
    }
  });
}

}  // namespace
}  // namespace shoal::test
