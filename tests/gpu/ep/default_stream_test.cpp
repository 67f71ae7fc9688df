// SPDX-License-Identifier: Apache-2.0
// Calls between emulated nodes on CUDA's legacy default stream. The driver moves the rows, which
// fails if another call of the process waits in the driver for a kernel that waits for a row.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "gpu/ep/nodes.hpp"
#include "shoal/collective.hpp"
#include "support/process/process.hpp"

namespace shoal::test {
namespace {

ep::Launch on_default_stream() {
  return {.stream = cudaStreamLegacy, .after = nullptr, .done = nullptr, .sms = 0};
}

/// A late PE calls when the others have queued more than a queue of the driver holds, if they do
/// not wait.
void come_late(World& world) {
  sync(world.team());
  if (world.my_pe() == 0) std::this_thread::sleep_for(std::chrono::seconds(1));
}

/// Many pairs without a wait of the program, then values.
SHOAL_PE_BODY(chain_of_low_latency_pairs) {
  World world = World::open({pe.settings, nullptr});
  const EpCase c = nodes_case(world.n_pes(), world.n_pes(), 1);
  GpuGroup group(world, options_for(c));
  GpuLowLatencyCall call{.early_weights = true, .launch = on_default_stream()};
  call.defer_receive = false;
  GpuLowLatencyRound round(group, c, call);
  come_late(world);
  for (int pair = 0; pair < 200; ++pair) {
    const ep::LowLatencyReceived got = round.send().receive();
    round.choose_buffer();
    (void)round.combine(got).receive();
  }
  group.group.synchronize();
  GpuLowLatencyRound(group, c, call).run();
}

/// After each call a copy to pageable memory.
SHOAL_PE_BODY(copies_to_pageable_memory) {
  World world = World::open({pe.settings, nullptr});
  const EpCase c = nodes_case(world.n_pes(), world.n_pes(), 1);
  GpuGroup group(world, options_for(c));
  GpuLowLatencyCall call{.early_weights = true, .launch = on_default_stream()};
  call.defer_receive = false;
  GpuLowLatencyRound round(group, c, call);
  for (int pair = 0; pair < 4; ++pair) {
    come_late(world);
    const ep::LowLatencyReceived got = round.send().receive();
    std::vector<std::int32_t> counts(static_cast<std::size_t>(got.counts.shape[0]));
    ASSERT_EQ(cudaMemcpyAsync(counts.data(), got.counts.data, counts.size() * sizeof counts[0],
                              cudaMemcpyDeviceToHost, cudaStreamLegacy),
              cudaSuccess);
    round.choose_buffer();
    (void)round.combine(got).receive();
  }
  group.group.synchronize();
}

/// Rounds of normal mode, compared with the references.
SHOAL_PE_BODY(normal_rounds) {
  World world = World::open({pe.settings, nullptr});
  const EpCase c = nodes_case(world.n_pes(), world.n_pes(), 1);
  GpuGroup group(world, options_for(c));
  run_normal_rounds(group, c);
}

struct Way {
  const char* body;
  const char* loading;  ///< CUDA_MODULE_LOADING
};

void PrintTo(const Way& way, std::ostream* out) {
  *out << way.body << '_' << way.loading;
}

class EpGpuDefaultStream : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, EpGpuDefaultStream,
                         testing::Values(Way{"chain_of_low_latency_pairs", "EAGER"},
                                         Way{"chain_of_low_latency_pairs", "LAZY"},
                                         Way{"copies_to_pageable_memory", "EAGER"},
                                         Way{"normal_rounds", "LAZY"}),
                         testing::PrintToStringParamName());

TEST_P(EpGpuDefaultStream, DoesNotHoldUpTheProxy) {
  SHOAL_SKIP_WITHOUT_GPU();
  // Kernels that wait for each other would have to take turns.
  if (gpu_count() < 2) GTEST_SKIP() << "needs two GPUs";
  expect_success(run_pes(2, GetParam().body,
                         {.env = {{"CUDA_DEVICE_MAX_CONNECTIONS", "32"},
                                  {"CUDA_MODULE_LOADING", GetParam().loading},
                                  {"SHOAL_EP_BETWEEN_NODES", "kernels"},
                                  {"SHOAL_HEAP", "cuda"},
                                  {"SHOAL_NODE_SIZE", "1"},
                                  {"SHOAL_SYMMETRIC_SIZE", "256M"},
                                  {"SHOAL_TIMEOUT_MS", "10000"},
                                  {"SHOAL_TRANSPORT_BETWEEN", "cuda_p2p"}}}));
}

}  // namespace
}  // namespace shoal::test
