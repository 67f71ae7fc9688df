// SPDX-License-Identifier: Apache-2.0
// Every operation of a world whose heap is in GPU memory, with 8 PEs as threads on one GPU or on
// all GPUs of the machine.

#include <gtest/gtest.h>

#include <ostream>

#include "support/cuda/world_gpu.hpp"

namespace shoal::test {
namespace {

struct Case {
  const char* handle;
  Pe n_pes;
  std::int64_t device;  // -1: spread
  std::int64_t node_size;
  const char* between = "automatic";
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.handle << '_' << one.n_pes << "_pes_" << (one.device < 0 ? "spread" : "on_one")
       << (one.node_size == 0 ? "" : "_in_nodes")
       << (std::string_view(one.between) == "staged" ? "_staged" : "");
}

class WorldOnGpu : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }
  void run(void (*check)(World&)) {
    Settings settings = gpu_world_settings();
    settings.cuda_handle = GetParam().handle;
    settings.device = GetParam().device;
    settings.node_size = GetParam().node_size;
    settings.transport_between = GetParam().between;
    run_threads(GetParam().n_pes, settings, check);
  }
};

TEST_P(WorldOnGpu, KnowsWhoAndWhereItIs) {
  run(check_identity);
}
TEST_P(WorldOnGpu, PutsAndGets) {
  run(check_rma);
}
TEST_P(WorldOnGpu, PutsAndGetsStrided) {
  run(check_strided);
}
TEST_P(WorldOnGpu, UpdatesAtomically) {
  run(check_atomics);
}
TEST_P(WorldOnGpu, SignalsAfterData) {
  run(check_signals);
}
TEST_P(WorldOnGpu, WaitsAndTests) {
  run(check_waits);
}
TEST_P(WorldOnGpu, RefusesWhatIsOutside) {
  run(check_bounds);
}
TEST_P(WorldOnGpu, AllocatesSymmetrically) {
  run(check_heap);
}
TEST_P(WorldOnGpu, ExchangesAndMakesTeams) {
  run([](World& world) {
    check_exchange(world);
    check_teams(world);
    check_make_team(world);
  });
}
TEST_P(WorldOnGpu, OrdersByFence) {
  run(check_fence);
}
TEST_P(WorldOnGpu, CountsArrivalsBySignals) {
  run(check_put_signal_add);
}
TEST_P(WorldOnGpu, UpdatesUnsignedWords) {
  run(check_unsigned_atomics);
}
TEST_P(WorldOnGpu, NamesTheVariableThatIsReady) {
  run(check_wait_index);
}
TEST_P(WorldOnGpu, KnowsPeerPointers) {
  run(check_peer_pointer);
}
TEST_P(WorldOnGpu, MovesRegisteredBuffers) {
  run(check_registered_buffers);
}

INSTANTIATE_TEST_SUITE_P(Sizes, WorldOnGpu,
                         testing::Values(Case{"automatic", 8, 0, 0}, Case{"automatic", 8, -1, 0},
                                         Case{"automatic", 4, -1, 2},
                                         Case{"automatic", 4, -1, 2, "staged"},
                                         Case{"ipc", 4, -1, 0}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace shoal::test
