// SPDX-License-Identifier: Apache-2.0
// Groups on emulated nodes whose kernels drive queues of an emulated NIC, which serves heaps in
// pinned host memory. PEs are threads that share the first GPU: others do not reach pinned heaps.
#include <gtest/gtest.h>

#include <string>

#include "checks/ep/gpu_low_latency.hpp"
#include "support/world/verbs.hpp"

namespace shoal::test {
namespace {

struct Tier {
  const char *ordering, *loss;
  std::int32_t ranks, nodes;
};

EpCase small(const Tier& tier, std::uint64_t seed) {
  return {.ranks = tier.ranks,
          .experts = tier.ranks * 3,
          .top_k = 4,
          .hidden = 512,
          .max_tokens = 40,
          .seed = seed,
          .nodes = tier.nodes};
}

class EpGpuNodesByNic : public WithVerbs, public testing::WithParamInterface<Tier> {
 protected:
  void SetUp() override {
    WithVerbs::SetUp();
    if (IsSkipped()) return;
    emulate("ORDERING", GetParam().ordering);
    if (*GetParam().loss != '\0') emulate("LOSS", GetParam().loss);
  }
  /// Also checks that every PE says so.
  static void run_group(const EpCase& c, const std::function<void(GpuGroup&)>& body) {
    SCOPED_TRACE(c.describe());
    Settings settings = gpu_settings();
    settings.cuda_handle = "pinned";
    settings.device = 0;
    settings.node_size = c.ranks / c.nodes;
    settings.staging_size = std::size_t{1} << 30;
    settings.ep_between_nodes = "kernels";
    settings.verbs_library = kEmulatedIbverbs;
    settings.verbs_interface = "devx";
    settings.transport_between = "verbs,staged";
    settings.verbs_depth = 64;
    settings.gda = "on";
    settings.gda_queue_pairs = 2;
    settings.log = "info";
    testing::internal::CaptureStderr();
    run_threads(c.ranks, settings, [&](World& world) {
      GpuGroup owner(world, options_for(c));
      body(owner);
    });
    const std::string said = testing::internal::GetCapturedStderr();
    for (std::int32_t pe = 0; pe < c.ranks; ++pe)
      EXPECT_NE(said.find("PE " + std::to_string(pe) +
                          ": kernels of this ep::Group send rows over the network, through queues "
                          "of the NIC"),
                std::string::npos)
          << said;
  }
};
INSTANTIATE_TEST_SUITE_P(Tiers, EpGpuNodesByNic,
                         testing::Values(Tier{"strict", "", 2, 2}, Tier{"adaptive", "", 2, 2},
                                         Tier{"unordered", "", 2, 2}, Tier{"strict", "", 4, 2},
                                         Tier{"adaptive", "", 4, 2}, Tier{"adaptive", "0.01", 2, 2},
                                         Tier{"adaptive", "", 8, 4}),
                         [](const auto& tier) {
                           return std::string(tier.param.ordering) +
                                  (*tier.param.loss != '\0' ? "WithLoss" : "") +
                                  std::to_string(tier.param.ranks) + "on" +
                                  std::to_string(tier.param.nodes);
                         });

TEST_P(EpGpuNodesByNic, NormalModeMatchesTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(GetParam(), 1);
  run_group(c, [&](GpuGroup& owner) {
    for (int i = 0; i < 5; ++i) {
      GpuRound(owner, c, {}).run();
      GpuRound(owner, c, {.scales = 4, .place = OutputPlace::in_place, .biases = 2}).run();
    }
  });
}

TEST_P(EpGpuNodesByNic, ExpertMajorRowsMatchTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(GetParam(), 2);
  run_group(c, [&](GpuGroup& owner) {
    EpCase few = c;  // up to three rows per token, in the memory of a rank-major result
    few.max_tokens = c.max_tokens / 4;
    check_expert_major(owner.group, few, {.alignment = 4, .cached = 1}, mover(owner));
  });
}

TEST_P(EpGpuNodesByNic, LowLatencyModeMatchesTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(GetParam(), 3);
  run_group(c, [&](GpuGroup& owner) {
    for (int i = 0; i < 5; ++i)
      for (const GpuLowLatencyCall& call :
           {GpuLowLatencyCall{}, GpuLowLatencyCall{.early_weights = true},
            GpuLowLatencyCall{.quantize = ep::Quantize::fp8, .out = true},
            GpuLowLatencyCall{.reduction = ep::Reduction::exact},
            GpuLowLatencyCall{.reduction = ep::Reduction::exact, .log_fmt = true}})
        GpuLowLatencyRound(owner, c, call).run();
  });
}

}  // namespace
}  // namespace shoal::test
