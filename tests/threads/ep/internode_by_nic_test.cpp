// SPDX-License-Identifier: Apache-2.0
// Normal mode between nodes on fake GPUs, whose chunks, notices and releases are requests to an
// emulated NIC, in every ordering tier. Results are compared bit by bit.
// @traits polls, fake_gpu, emulated_nic
#include "fake_gpu/fake_gpu.hpp"
//
#include <gtest/gtest.h>

#include <ostream>

#include "unit/ep/internode_ranks.hpp"

namespace shoal::ep::cuda {
namespace {

using test::fake_gpu::with_nic_worlds;

struct Tier {
  const char *ordering, *loss;
};

void PrintTo(const Tier& tier, std::ostream* out) {
  *out << tier.ordering << (*tier.loss != '\0' ? "WithLoss" : "");
}
class InternodeByNic : public testing::TestWithParam<Tier> {
 protected:
  static void run(const Case& c, std::int64_t queue_pairs = 2) {
    const std::string why_not = with_nic_worlds(
        {c.ranks(), Ranks::memory_of(c), GetParam().ordering, GetParam().loss, queue_pairs},
        [&](const std::vector<NicWorld>& worlds) {
          Ranks ranks(c, worlds);
          ranks.run();
        });
    if (!why_not.empty()) GTEST_SKIP() << why_not;
  }
};
INSTANTIATE_TEST_SUITE_P(Tiers, InternodeByNic,
                         testing::Values(Tier{"strict", ""}, Tier{"adaptive", ""},
                                         Tier{"unordered", ""}, Tier{"unordered", "0.02"}),
                         testing::PrintToStringParamName());

TEST_P(InternodeByNic, TwoNodesOfOneRank) {
  run({.nodes = 2, .size = 1, .max_tokens = 31, .seed = 1}, 1);
}
TEST_P(InternodeByNic, TwoNodesOfTwoRanks) {
  run({.nodes = 2, .size = 2, .seed = 2}, 3);
}
TEST_P(InternodeByNic, ThreeNodesExpertMajor) {
  run({.nodes = 3, .size = 1, .top_k = 3, .scales = 3, .alignment = 1, .seed = 6});
}

}  // namespace
}  // namespace shoal::ep::cuda
