// SPDX-License-Identifier: Apache-2.0
// Groups on emulated nodes whose kernels drive queues of the NIC that is a kernel
// (SHOAL_GDA=emulated), with delays and reordering. PEs are threads, on one GPU or more.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "checks/ep/gpu_low_latency.hpp"
#include "support/world/world_local.hpp"

namespace shoal::test {
namespace {

/// Before CUDA starts: kernels must not be loaded while that of a NIC runs.
const int kEager = [] {
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  return setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
}();

struct Tier {
  const char *ordering, *reorder_us;
  std::int32_t ranks, nodes;
};

class EpGpuNodesByGpuNic : public testing::TestWithParam<Tier> {
 protected:
  void SetUp() override {
    ASSERT_EQ(kEager, 0);
    setenv("SHOAL_EMULATOR_ORDERING", GetParam().ordering, 1);
    setenv("SHOAL_EMULATOR_REORDER_US", GetParam().reorder_us, 1);
    setenv("SHOAL_EMULATOR_DELAY_US", "1.5", 1);
    setenv("SHOAL_EMULATOR_SMS", "2", 1);
  }
  void TearDown() override {
    for (const char* name : {"ORDERING", "REORDER_US", "DELAY_US", "SMS"})
      unsetenv((std::string("SHOAL_EMULATOR_") + name).c_str());
  }
  static EpCase small(std::uint64_t seed) {
    const Tier& tier = GetParam();
    return {.ranks = tier.ranks,
            .experts = tier.ranks * 3,
            .top_k = 4,
            .hidden = 512,
            .max_tokens = 40,
            .seed = seed,
            .nodes = tier.nodes};
  }
  /// Also checks that every PE says how its rows travel.
  static void run_group(const EpCase& c, const std::function<void(GpuGroup&)>& body) {
    SCOPED_TRACE(c.describe());
    Settings settings = gpu_settings();
    settings.node_size = c.ranks / c.nodes;
    settings.transport_between = "cuda_p2p";
    settings.ep_between_nodes = "kernels";
    settings.verbs_depth = 64;
    settings.gda = "emulated";
    settings.gda_queue_pairs = 2;
    settings.log = "info";
    testing::internal::CaptureStderr();
    run_threads(c.ranks, settings, [&](World& world) {
      const Pe far = (world.my_pe() + world.pes_per_node()) % world.n_pes();
      const std::string how = world.describe_transport(far);
      EXPECT_NE(how.find("2 queue pairs for kernels on an emulated NIC of GPU "), how.npos) << how;
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
INSTANTIATE_TEST_SUITE_P(Tiers, EpGpuNodesByGpuNic,
                         testing::Values(Tier{"strict", "0", 2, 2}, Tier{"adaptive", "10", 2, 2},
                                         Tier{"unordered", "10", 2, 2}, Tier{"strict", "0", 4, 2},
                                         Tier{"adaptive", "10", 4, 2},
                                         Tier{"adaptive", "10", 4, 4}),
                         [](const auto& tier) {
                           return std::string(tier.param.ordering) +
                                  std::to_string(tier.param.ranks) + "on" +
                                  std::to_string(tier.param.nodes);
                         });

TEST_P(EpGpuNodesByGpuNic, NormalModeMatchesTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(1);
  run_group(c, [&](GpuGroup& owner) {
    for (int i = 0; i < 5; ++i) {
      GpuRound(owner, c, {}).run();
      GpuRound(owner, c, {.scales = 4, .place = OutputPlace::in_place, .biases = 2}).run();
    }
  });
}

TEST_P(EpGpuNodesByGpuNic, LowLatencyModeMatchesTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(3);
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
