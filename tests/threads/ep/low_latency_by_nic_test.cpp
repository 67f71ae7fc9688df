// SPDX-License-Identifier: Apache-2.0
// The kernels of low-latency mode on a fake GPU, whose puts and signals between nodes are requests
// to an emulated NIC, in every ordering tier. Results are compared bit by bit.
// @traits polls, fake_gpu, emulated_nic
#include "fake_gpu/fake_gpu.hpp"
//
#include <gtest/gtest.h>

#include <ostream>

#include "unit/ep/low_latency_ranks.hpp"

namespace shoal::ep::cuda {
namespace {

using test::fake_gpu::NicCase;
using test::fake_gpu::with_nic_worlds;

struct Tier {
  const char *ordering, *loss;
};

void PrintTo(const Tier& tier, std::ostream* out) {
  *out << tier.ordering << (*tier.loss != '\0' ? "WithLoss" : "");
}
class LowLatencyByNic : public testing::TestWithParam<Tier> {
 protected:
  static void run(const Case& c, const std::function<void(Ranks&)>& body) {
    const NicCase nic{c.ranks, Ranks::memory_of(c), GetParam().ordering, GetParam().loss};
    const std::string why_not = with_nic_worlds(nic, [&](const std::vector<NicWorld>& worlds) {
      test::fake_gpu::run_concurrently();  // with the NIC
      Ranks ranks(c, worlds);
      body(ranks);
      EXPECT_EQ(network.puts + network.signals, 0U) << "nothing goes by the proxy";
    });
    if (!why_not.empty()) GTEST_SKIP() << why_not;
  }
};
INSTANTIATE_TEST_SUITE_P(Tiers, LowLatencyByNic,
                         testing::Values(Tier{"strict", ""}, Tier{"adaptive", ""},
                                         Tier{"unordered", ""}, Tier{"unordered", "0.02"}),
                         testing::PrintToStringParamName());

TEST_P(LowLatencyByNic, EveryFormMatchesTheReference) {
  run({.ranks = 2, .experts = 6, .hidden = 656, .tokens = {9, 7}, .blocks = 2, .node_size = 1},
      [](Ranks& ranks) {
        for (const Combine& combine : {kNow, kSums, kLogfmt, kRows, kExactLogfmt, kLogfmtNow})
          ranks.round(combine, Values::mixed);
        for (const Combine& combine : {kNow, kLogfmt}) ranks.round(combine, Values::plain, true);
        ranks.quantize(Quantize::fp8);
        ranks.round(kSums, Values::plain, true);
      });
}

TEST_P(LowLatencyByNic, TwoNodesOfTwoRanksWithMasks) {
  run({.ranks = 4,
       .experts = 12,
       .hidden = 520,
       .tokens = {3, 5, 0, 2},
       .masks = true,
       .blocks = 1,
       .node_size = 2},
      [](Ranks& ranks) {
        for (const Combine& combine : {kSums, kLogfmt, kRows}) ranks.round(combine, Values::plain);
      });
}

// More requests than a queue has slots for.
TEST_P(LowLatencyByNic, ManyTokens) {
  run({.ranks = 2, .experts = 16, .top_k = 8, .hidden = 256, .tokens = {70, 64}, .node_size = 1},
      [](Ranks& ranks) {
        for (const Combine& combine : {kSums, kRows}) ranks.round(combine, Values::plain);
      });
}

}  // namespace
}  // namespace shoal::ep::cuda
