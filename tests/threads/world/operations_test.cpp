// SPDX-License-Identifier: Apache-2.0
// Every operation of a world whose PEs are threads, with load-store reach and, where
// SHOAL_NODE_SIZE splits the host, without it.
// @traits slow

#include <gtest/gtest.h>

#include <ostream>

#include "checks/world/operations.hpp"

namespace shoal::test {
namespace {

struct Case {
  Pe n_pes;
  std::int64_t node_size;
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.n_pes << "_pes_node_size_" << one.node_size;
}

class WorldOfThreads : public testing::TestWithParam<Case> {
 protected:
  void run(void (*check)(World&)) {
    Settings settings = world_settings();
    settings.node_size = GetParam().node_size;
    settings.max_teams = 40;
    run_threads(GetParam().n_pes, settings, check);
  }
};

TEST_P(WorldOfThreads, KnowsWhoAndWhereItIs) {
  run(check_identity);
}
TEST_P(WorldOfThreads, PutsAndGets) {
  run(check_rma);
}
TEST_P(WorldOfThreads, PutsAndGetsStrided) {
  run(check_strided);
}
TEST_P(WorldOfThreads, UpdatesAtomically) {
  run(check_atomics);
}
TEST_P(WorldOfThreads, SignalsAfterData) {
  run(check_signals);
}
TEST_P(WorldOfThreads, WaitsAndTests) {
  run(check_waits);
}
TEST_P(WorldOfThreads, RefusesWhatIsOutside) {
  run(check_bounds);
}
TEST_P(WorldOfThreads, AllocatesSymmetrically) {
  run(check_heap);
}
TEST_P(WorldOfThreads, Exchanges) {
  run(check_exchange);
}
TEST_P(WorldOfThreads, MakesTeams) {
  run(check_teams);
}
TEST_P(WorldOfThreads, MakesTeamsById) {
  run(check_make_team);
}
TEST_P(WorldOfThreads, OrdersByFence) {
  run(check_fence);
}
TEST_P(WorldOfThreads, CountsArrivalsBySignals) {
  run(check_put_signal_add);
}
TEST_P(WorldOfThreads, UpdatesUnsignedWords) {
  run(check_unsigned_atomics);
}
TEST_P(WorldOfThreads, NamesTheVariableThatIsReady) {
  run(check_wait_index);
}
TEST_P(WorldOfThreads, StoresThroughPeerPointers) {
  run(check_peer_pointer);
}
TEST_P(WorldOfThreads, MovesRegisteredBuffers) {
  run(check_registered_buffers);
}

INSTANTIATE_TEST_SUITE_P(Sizes, WorldOfThreads,
                         testing::Values(Case{2, 0}, Case{4, 0}, Case{4, 2}, Case{4, 1},
                                         Case{7, 0}),
                         testing::PrintToStringParamName());

// Rails of eight PEs on each of two nodes.
TEST(WorldOfManyThreads, SplitsIntoRails) {
  Settings settings = world_settings();
  settings.node_size = 8;
  settings.max_teams = 40;
  run_threads(16, settings, check_teams);
}

}  // namespace
}  // namespace shoal::test
