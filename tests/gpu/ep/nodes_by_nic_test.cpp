// SPDX-License-Identifier: Apache-2.0
// Groups on emulated nodes whose kernels drive queues of an emulated NIC, which serves heaps in
// pinned host memory. PEs are threads that share the first GPU: others do not reach pinned heaps.
#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "gpu/ep/nodes.hpp"
#include "support/expect_error.hpp"
#include "support/world/verbs.hpp"

namespace shoal::test {
namespace {

struct Tier {
  const char *ordering, *loss;
  std::int32_t ranks, nodes;
};

void PrintTo(const Tier& tier, std::ostream* out) {
  *out << tier.ordering << (*tier.loss != '\0' ? "WithLoss" : "") << tier.ranks << "on"
       << tier.nodes;
}

class EpGpuNodesByNic : public WithVerbs, public testing::WithParamInterface<Tier> {
 protected:
  void SetUp() override {
    WithVerbs::SetUp();
    if (IsSkipped()) return;
    emulate("ORDERING", GetParam().ordering);
    if (*GetParam().loss != '\0') emulate("LOSS", GetParam().loss);
    if (std::string(GetParam().ordering) != "strict") emulate("REORDERING", "0.2");
  }
  static EpCase tier_case(std::uint64_t seed) {
    return nodes_case(GetParam().ranks, GetParam().nodes, seed);
  }
  /// Runs `body` with a group on each PE. Also checks that every PE names its queues.
  static void run_group(const EpCase& c, const std::function<void(GpuGroup&)>& body) {
    Settings settings = gpu_settings();
    settings.cuda_handle = "pinned";
    settings.device = 0;
    settings.staging_size = std::size_t{1} << 30;
    settings.node_size = c.ranks / c.nodes;
    settings.ep_between_nodes = "kernels";
    settings.log = "info";
    add_kernel_queues(settings);
    SCOPED_TRACE(c.describe());
    testing::internal::CaptureStderr();
    run_threads(c.ranks, settings, [&](World& world) {
      const Pe remote = (world.my_pe() + world.pes_per_node()) % world.n_pes();
      const std::string how = world.describe_transport(remote);
      expect_parts(how, {"2 queue pairs for kernels on "});
      GpuGroup owner(world, options_for(c));
      body(owner);
    });
    const std::string said = testing::internal::GetCapturedStderr();
    for (std::int32_t pe = 0; pe < c.ranks; ++pe)
      expect_parts(said, {"PE " + std::to_string(pe) +
                          ": kernels of this ep::Group send rows over the network, through queues "
                          "of the NIC"});
  }
};
INSTANTIATE_TEST_SUITE_P(Tiers, EpGpuNodesByNic,
                         testing::Values(Tier{"strict", "", 2, 2}, Tier{"adaptive", "", 2, 2},
                                         Tier{"unordered", "", 2, 2}, Tier{"strict", "", 4, 2},
                                         Tier{"adaptive", "", 4, 2}, Tier{"adaptive", "0.01", 2, 2},
                                         Tier{"adaptive", "", 4, 4}, Tier{"strict", "", 8, 4},
                                         Tier{"adaptive", "", 8, 4}, Tier{"adaptive", "", 8, 2}),
                         testing::PrintToStringParamName());

TEST_P(EpGpuNodesByNic, NormalModeMatchesTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = tier_case(1);
  run_group(c, [&](GpuGroup& owner) { run_normal_rounds(owner, c); });
}

TEST_P(EpGpuNodesByNic, ExpertMajorRowsMatchTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = tier_case(2);
  run_group(c, [&](GpuGroup& owner) { run_expert_major_rounds(owner, c); });
}

TEST_P(EpGpuNodesByNic, LowLatencyModeMatchesTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = tier_case(3);
  run_group(c, [&](GpuGroup& owner) { run_low_latency_rounds(owner, c); });
}

}  // namespace
}  // namespace shoal::test
