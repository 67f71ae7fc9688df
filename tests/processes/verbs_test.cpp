// SPDX-License-Identifier: Apache-2.0
// The verbs transport between processes, each with an emulated NIC, whose packets travel through
// shared memory: every ordering tier, packets that are lost, doubled and reordered, and EP between
// (emulated) nodes.
// @traits polls, slow
#include <gtest/gtest.h>

#include <string>

#include "checks/collective/reference.hpp"
#include "checks/ep/normal.hpp"
#include "checks/transport/worlds.hpp"
#include "shoal/collective.hpp"
#include "support/process/process.hpp"
#include "support/rounds.hpp"
#include "support/world/verbs.hpp"

namespace shoal::test {
namespace {

Environment environment(const std::string& ordering) {
  Environment environment = verbs_environment("20000");
  environment["SHOAL_SYMMETRIC_SIZE"] = "16M";
  environment["SHOAL_EMULATOR_ORDERING"] = ordering;
  if (ordering != "strict") environment["SHOAL_EMULATOR_REORDERING"] = "0.3";
  return environment;
}

SHOAL_PE_BODY(verbs_everything) {
  World world = World::open({pe.settings, nullptr});
  check_everything(world);
  run_random_collectives(world, rounds(20, 6), 4711);
  world.close();
}

SHOAL_PE_BODY(verbs_order) {
  World world = World::open({pe.settings, nullptr});
  check_data_before_signals(world);
  world.close();
}

SHOAL_PE_BODY(verbs_long_transfers) {
  World world = World::open({pe.settings, nullptr});
  check_long_transfers(world);
  world.close();
}

// Shared memory inside a node, verbs between nodes.
void check_ep_internode(World& world) {
  EXPECT_TRUE(world.describe_transport((world.my_pe() + 2) % 4).starts_with("verbs"));
  const EpCase c{.ranks = 4, .experts = 12, .top_k = 4, .hidden = 96, .max_tokens = 24, .nodes = 2};
  ep::Group group(world.team(), options_for(c));
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    EpCase now = c;
    now.seed = seed;
    check_normal(group, now);
    check_low_latency(group, now, ep::Reduction::per_rank, seed % 2 == 0);
    check_low_latency_quantized(group, now, ep::Quantize::fp8_ue8m0);
  }
  group.close();
}

SHOAL_PE_BODY(verbs_ep) {
  World world = World::open({pe.settings, nullptr});
  check_ep_internode(world);
  check_mixed_atomics_for(world, 500);
  world.close();
}

// Without rounds of atomics, each of which would cost a timeout where its packet is lost.
SHOAL_PE_BODY(verbs_ep_under_loss) {
  World world = World::open({pe.settings, nullptr});
  check_ep_internode(world);
  world.close();
}

class VerbsProcesses : public WithVerbs, public testing::WithParamInterface<const char*> {};

TEST_P(VerbsProcesses, DoEverything) {
  Environment chosen = environment(GetParam());
  chosen["SHOAL_VERBS_QUEUE_PAIRS"] = "2";
  expect_success(run_pes(3, "verbs_everything", {.env = chosen}));
}

TEST_P(VerbsProcesses, ShowDataBeforeItsSignal) {
  expect_success(run_pes(2, "verbs_order", {.env = environment(GetParam())}));
}

TEST_P(VerbsProcesses, CutLongTransfers) {
  Environment chosen = environment(GetParam());
  chosen["SHOAL_VERBS_QUEUE_PAIRS"] = "3";
  chosen["SHOAL_NETWORK_CHUNK"] = "100000";
  expect_success(run_pes(2, "verbs_long_transfers", {.env = chosen}));
}

TEST_P(VerbsProcesses, RunBothModesOfExpertParallelism) {
  Environment chosen = environment(GetParam());
  chosen["SHOAL_TRANSPORT_INSIDE"] = "shm";
  chosen["SHOAL_NODE_SIZE"] = "2";
  expect_success(run_pes(4, "verbs_ep", {.env = chosen}));
}

INSTANTIATE_TEST_SUITE_P(Tiers, VerbsProcesses, testing::Values("strict", "adaptive", "unordered"),
                         [](const auto& instance) { return std::string(instance.param); });

// The wire between hosts, on the loopback interface: a RoCE port.
TEST_F(WithVerbs, ProcessesReachEachOtherOverRoce) {
  Environment chosen = environment("adaptive");
  chosen["SHOAL_EMULATOR_WIRE"] = "udp";
  chosen["SHOAL_EMULATOR_UDP_INTERFACE"] = "lo";
  expect_success(run_pes(2, "verbs_everything", {.env = chosen}));
}

/// One packet of a hundred is lost, as many are doubled; outside the strict tier some overtake
/// others.
Environment lossy_environment(const std::string& ordering) {
  Environment chosen = environment(ordering);
  chosen["SHOAL_EMULATOR_LOSS"] = "0.01";
  chosen["SHOAL_EMULATOR_DUPLICATION"] = "0.01";
  return chosen;
}

void survive_expert_parallelism(Environment chosen) {
  chosen["SHOAL_TRANSPORT_INSIDE"] = "shm";
  chosen["SHOAL_NODE_SIZE"] = "2";
  expect_success(run_pes(4, "verbs_ep_under_loss", {.env = chosen}));
}

TEST_F(WithVerbs, ProcessesSurviveLossInOrder) {
  const Environment chosen = lossy_environment("strict");
  expect_success(run_pes(2, "verbs_everything", {.env = chosen}));
  survive_expert_parallelism(chosen);
}

TEST_F(WithVerbs, ExpertParallelismSurvivesLossUnderAdaptiveRouting) {
  survive_expert_parallelism(lossy_environment("adaptive"));
}

TEST_F(WithVerbs, ExpertParallelismSurvivesLossInTheUnorderedTier) {
  survive_expert_parallelism(lossy_environment("unordered"));
}

}  // namespace
}  // namespace shoal::test
