// SPDX-License-Identifier: Apache-2.0
// Groups of tensors in GPU memory whose ranks are on several (emulated) nodes, or on one with
// NVLink turned off: rows pass through the host. PEs are threads that share the available GPUs.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "checks/ep/formats.hpp"
#include "gpu/ep/nodes.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

struct Grid {
  std::int32_t ranks, nodes;
  bool kernels = false;  ///< that send between nodes, in modes that have them
};
void PrintTo(const Grid& grid, std::ostream* out) {
  *out << grid.ranks << " ranks on " << grid.nodes
       << (grid.nodes == 1 ? " node without NVLink" : " nodes")
       << (grid.kernels ? ", kernels" : ", staged");
}

EpCase grid_case(const Grid& grid, std::uint64_t seed) {
  return nodes_case(grid.ranks, grid.nodes, seed);
}

void run_group(const EpCase& c, const std::function<void(GpuGroup&)>& body,
               DataType widest = DataType::bfloat16, bool kernels = false) {
  SCOPED_TRACE(c.describe());
  Settings settings = gpu_settings();
  settings.node_size = c.ranks / c.nodes;
  settings.staging_size = std::size_t{1} << 30;
  settings.ep_between_nodes = kernels ? "kernels" : "staged";
  if (c.nodes == 1) settings.transport_inside = "staged";
  run_threads(c.ranks, settings, [&](World& world) {
    if (c.nodes == 1)
      EXPECT_EQ(world.shared_team().size(), 1) << "no other PE is reachable by load and store";
    ep::GroupOptions options = options_for(c);
    options.dtype = widest;
    GpuGroup owner(world, options);
    body(owner);
  });
}

class EpGpuNodes : public ::testing::TestWithParam<Grid> {};
INSTANTIATE_TEST_SUITE_P(Grids, EpGpuNodes,
                         ::testing::Values(Grid{2, 2}, Grid{4, 2}, Grid{6, 3}, Grid{8, 2},
                                           Grid{2, 1}, Grid{5, 1}, Grid{2, 2, true},
                                           Grid{4, 2, true}, Grid{8, 2, true}, Grid{5, 1, true}));

TEST_P(EpGpuNodes, NormalModeMatchesTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = grid_case(GetParam(), 1);
  run_group(
      c,
      [&](GpuGroup& owner) {
        GpuRound(owner, c, {}).run();
        GpuRound(owner, c,
                 {.scales = 4,
                  .scale_order = ScaleOrder::columns,
                  .place = OutputPlace::in_place,
                  .biases = 2})
            .run();
        GpuRound(owner, c, {.int32_topk = true, .place = OutputPlace::heap, .out = true}).run();
      },
      DataType::bfloat16, GetParam().kernels);
}

TEST_P(EpGpuNodes, RowsInEveryFormat) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = grid_case(GetParam(), 7);
  c.hidden = 192;
  run_group(
      c,
      [&](GpuGroup& owner) {
        check_normal_formats(owner.group, c, mover(owner));
        check_refused_formats(owner.group, c, mover(owner));
      },
      DataType::bfloat16, GetParam().kernels);
}

TEST_P(EpGpuNodes, RowsOfOtherKinds) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = grid_case(GetParam(), 2);
  run_group(
      c,
      [&](GpuGroup& owner) {
        GpuRound(owner, c,
                 {.dtype = DataType::float8_e4m3, .scales = 4, .output_dtype = DataType::bfloat16})
            .run();
        GpuRound(owner, c,
                 {.dtype = DataType::float32, .weights = false, .output_dtype = DataType::float32})
            .run();
      },
      DataType::float32, GetParam().kernels);
}

TEST_P(EpGpuNodes, LowLatencyModeMatchesTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  using enum ep::ScaleLayout;
  EpCase c = grid_case(GetParam(), 3);
  c.hidden = (c.hidden + 63) / 64 * 64;  // every format takes 64 channels
  run_group(
      c,
      [&](GpuGroup& owner) {
        for (const GpuLowLatencyCall& call :
             {GpuLowLatencyCall{}, GpuLowLatencyCall{.zero_copy = true},
              GpuLowLatencyCall{.quantize = ep::Quantize::fp8, .out = true},
              GpuLowLatencyCall{.quantize = ep::Quantize::nvfp4},
              GpuLowLatencyCall{.quantize = ep::Quantize::nvfp4, .scale_layout = rows},
              GpuLowLatencyCall{.quantize = ep::Quantize::mxfp8, .defer_receive = false},
              GpuLowLatencyCall{.quantize = ep::Quantize::mxfp8, .scale_layout = tiles},
              GpuLowLatencyCall{.quantize = ep::Quantize::fp8, .scale_layout = rows},
              GpuLowLatencyCall{.quantize = ep::Quantize::fp8_ue8m0, .zero_copy = true},
              GpuLowLatencyCall{.reduction = ep::Reduction::exact},
              GpuLowLatencyCall{.reduction = ep::Reduction::exact, .log_fmt = true},
              GpuLowLatencyCall{.out = true, .gives_rows = true},
              GpuLowLatencyCall{.combine_quantize = ep::Quantize::mxfp8,
                                .defer_receive = false,
                                .gives_rows = true},
              GpuLowLatencyCall{.log_fmt = true},
              GpuLowLatencyCall{.log_fmt = true, .early_weights = true},
              GpuLowLatencyCall{.log_fmt = true, .defer_receive = false},
              GpuLowLatencyCall{.combine_quantize = ep::Quantize::fp8, .early_weights = true},
              GpuLowLatencyCall{.reduction = ep::Reduction::exact,
                                .combine_quantize = ep::Quantize::fp8},
              GpuLowLatencyCall{.combine_quantize = ep::Quantize::mxfp8, .defer_receive = false}})
          GpuLowLatencyRound(owner, c, call).run();
      },
      DataType::bfloat16, GetParam().kernels);
}

TEST_P(EpGpuNodes, ManySlotsMatchTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = grid_case(GetParam(), 9);
  c.top_k = 72;
  c.experts = c.ranks * 40;
  c.hidden = (c.hidden + 63) / 64 * 64;
  run_group(
      c,
      [&](GpuGroup& owner) {
        GpuRound(owner, c, {.biases = 1}).run();
        for (const GpuLowLatencyCall& call :
             {GpuLowLatencyCall{}, GpuLowLatencyCall{.quantize = ep::Quantize::fp8},
              GpuLowLatencyCall{.reduction = ep::Reduction::exact, .defer_receive = false},
              GpuLowLatencyCall{.log_fmt = true, .early_weights = true},
              GpuLowLatencyCall{.combine_quantize = ep::Quantize::mxfp8, .defer_receive = false}})
          GpuLowLatencyRound(owner, c, call).run();
      },
      DataType::bfloat16, GetParam().kernels);
}

TEST_P(EpGpuNodes, ExpertMajorRowsMatchTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = grid_case(GetParam(), 6);
  run_group(
      c, [&](GpuGroup& owner) { run_expert_major_rounds(owner, c); }, DataType::bfloat16,
      GetParam().kernels);
}

TEST_P(EpGpuNodes, UnsummedRowsMatchTheReferenceOrAreRefused) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = grid_case(GetParam(), 8);
  run_group(
      c,
      [&](GpuGroup& owner) {
        EpCase few = c;
        few.max_tokens = c.max_tokens / 4;
        const auto round = [&](bool unsummed) {
          check_expert_major(owner.group, few, {.alignment = 4, .unsummed = unsummed},
                             mover(owner));
        };
        if (GetParam().kernels && GetParam().nodes > 1)
          expect_error(Code::invalid_argument, "several NVLink domains", [&] { round(true); });
        else
          round(true);
        round(false);
      },
      DataType::bfloat16, GetParam().kernels);
}

TEST(EpGpuNodesMode, ACaptureIsRefusedAndTheGroupContinues) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = grid_case({4, 2}, 7);
  run_group(c, [&](GpuGroup& owner) {
    GpuRound round(owner, c, {});
    GpuLowLatencyRound quick(owner, c, {});
    const ep::Routing routing = round.route();
    const ep::Dispatched got = round.dispatch(routing);
    round.check(got);
    round.write_expert_output(got);
    const ep::LowLatencyReceived received = quick.send().receive();
    quick.check(received);
    quick.write_expert_output();

    const ep::Launch on{.stream = owner.tensors.new_stream()};
    const auto refused = [&](const std::function<void()>& call) {
      auto* const stream = static_cast<cudaStream_t>(on.stream);
      ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
      expect_error(Code::unsupported, "which a captured stream cannot", call);
      cudaGraph_t graph = nullptr;
      EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess) << "the capture continues";
      if (graph != nullptr) (void)cudaGraphDestroy(graph);
    };
    refused([&] { round.route(on); });
    refused([&] { owner.group.dispatch(round.x(), routing, {.launch = on}); });
    refused([&] { owner.group.dispatch(round.x(), got.handle, {.launch = on}); });
    refused([&] { owner.group.combine(round.y(), got.handle, {.launch = on}); });
    refused([&] { owner.group.low_latency_dispatch(quick.x(), quick.topk(), {.launch = on}); });
    refused([&] {
      owner.group.low_latency_combine(received.x, quick.topk(), quick.weights(), received.handle,
                                      {.launch = on});
    });

    round.check(round.combine(got));
    quick.check(quick.combine(received).receive());
    for (int i = 0; i < 2; ++i) {
      GpuRound(owner, c, {.dispatch = {.launch = on}, .combine = on}).run();
      GpuLowLatencyRound(owner, c, {.launch = on}).run();
    }
  });
}

TEST(EpGpuNodesMode, EachRankLogsOnceThatRowsGoThroughTheHost) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = grid_case({4, 2}, 8);
  Settings settings = gpu_settings();
  settings.node_size = 2;
  settings.staging_size = std::size_t{1} << 30;
  settings.ep_between_nodes = "staged";
  settings.log = "info";  // between nodes the message has level info
  testing::internal::CaptureStderr();
  run_threads(c.ranks, settings, [&](World& world) {
    GpuGroup owner(world, options_for(c));
    for (int i = 0; i < 2; ++i) GpuRound(owner, c, {}).run();
  });
  const std::string said = testing::internal::GetCapturedStderr();
  for (int pe = 0; pe < c.ranks; ++pe) {
    const std::string text =
        "PE " + std::to_string(pe) + ": rows of this ep::Group go through host memory";
    const std::size_t first = said.find(text);
    EXPECT_NE(first, std::string::npos) << said;
    EXPECT_EQ(said.find(text, first + 1), std::string::npos) << said;
  }
}

TEST(EpGpuNodesMode, WithoutAProxyRowsGoThroughTheHostUnlessKernelsAreRequired) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = grid_case({4, 2}, 9);
  for (const char* const way : {"kernels", "automatic"}) {
    Settings settings = gpu_settings();
    settings.node_size = 2;
    settings.staging_size = std::size_t{1} << 30;
    settings.proxy_slots = 0;
    settings.ep_between_nodes = way;
    run_threads(c.ranks, settings, [&](World& world) {
      if (settings.ep_between_nodes == "kernels") {
        expect_error(Code::unsupported, "SHOAL_EP_BETWEEN_NODES is kernels, but",
                     [&] { ep::Group(world.team(), options_for(c)); });
        return;
      }
      GpuGroup owner(world, options_for(c));
      GpuLowLatencyRound(owner, c, {}).run();
    });
  }
}

// deep_ep returns them before they are received.
TEST(EpGpuNodesMode, LowLatencyResultsAlternateBetweenTwoBuffers) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = grid_case({4, 2}, 4);
  run_group(c, [&](GpuGroup& owner) {
    std::vector<ep::LowLatencyReceived> received;
    for (const ep::Quantize quantize :
         {ep::Quantize::none, ep::Quantize::fp8, ep::Quantize::fp8_ue8m0})
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
      if (i >= 4) EXPECT_EQ(received[i].scales->data, received[i - 2].scales->data);
    }
  });
}

TEST(EpGpuNodesMode, WarmUpAndManyRounds) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = grid_case({4, 2}, 5);
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
