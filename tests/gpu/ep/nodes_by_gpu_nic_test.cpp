// SPDX-License-Identifier: Apache-2.0
// Groups on emulated nodes whose kernels drive queues of the NIC that is a kernel
// (SHOAL_GDA=emulated), with delays and reordering. PEs are threads, on one GPU or more.
#include <gtest/gtest.h>

#include <cstdlib>
#include <ostream>
#include <string>

#include "gpu/ep/nodes.hpp"
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

void PrintTo(const Tier& tier, std::ostream* out) {
  *out << tier.ordering << tier.ranks << "on" << tier.nodes;
}

class EpGpuNodesByGpuNic : public testing::TestWithParam<Tier> {
 protected:
  void SetUp() override {
    ASSERT_EQ(kEager, 0);
    // A GPU has 32 hardware queues, and eight of these PEs have more streams.
    if (GetParam().ranks > 4 && gpu_count() == 1) GTEST_SKIP() << "needs two GPUs";
    setenv("SHOAL_EMULATOR_ORDERING", GetParam().ordering, 1);
    setenv("SHOAL_EMULATOR_REORDER_US", GetParam().reorder_us, 1);
    setenv("SHOAL_EMULATOR_DELAY_US", "1.5", 1);
    setenv("SHOAL_EMULATOR_SMS", "2", 1);
  }
  void TearDown() override {
    for (const char* name : {"ORDERING", "REORDER_US", "DELAY_US", "SMS"})
      unsetenv((std::string("SHOAL_EMULATOR_") + name).c_str());
  }
  static EpCase tier_case(std::uint64_t seed) {
    return nodes_case(GetParam().ranks, GetParam().nodes, seed);
  }
  /// Also checks how a PE describes its transport to another node.
  static void run_group(const EpCase& c, const std::function<void(GpuGroup&)>& body) {
    Settings settings = gpu_settings();
    settings.transport_between = "cuda_p2p";
    settings.gda = "emulated";
    run_by_nic(c, settings, [&](GpuGroup& owner) {
      World& world = owner.world;
      const Pe far = (world.my_pe() + world.pes_per_node()) % world.n_pes();
      const std::string how = world.describe_transport(far);
      EXPECT_NE(how.find("2 queue pairs for kernels on an emulated NIC of GPU "), how.npos) << how;
      body(owner);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Tiers, EpGpuNodesByGpuNic,
                         testing::Values(Tier{"strict", "0", 2, 2}, Tier{"adaptive", "10", 2, 2},
                                         Tier{"unordered", "10", 2, 2}, Tier{"strict", "0", 4, 2},
                                         Tier{"adaptive", "10", 4, 2}, Tier{"adaptive", "10", 4, 4},
                                         Tier{"strict", "0", 8, 4}, Tier{"adaptive", "10", 8, 2}),
                         testing::PrintToStringParamName());

TEST_P(EpGpuNodesByGpuNic, NormalModeMatchesTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = tier_case(1);
  run_group(c, [&](GpuGroup& owner) { run_normal_rounds(owner, c); });
}

TEST_P(EpGpuNodesByGpuNic, LowLatencyModeMatchesTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = tier_case(3);
  run_group(c, [&](GpuGroup& owner) { run_low_latency_rounds(owner, c); });
}

}  // namespace
}  // namespace shoal::test
