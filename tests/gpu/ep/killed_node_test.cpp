// SPDX-License-Identifier: Apache-2.0
// A PE on another emulated node is killed while kernels exchange rows with it, through the proxy or
// by queues of an emulated NIC. The other PE reports it in time.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <tuple>

#include "gpu/ep/nodes.hpp"
#include "support/expect_error.hpp"
#include "support/process/print_error.hpp"
#include "support/process/process.hpp"
#include "support/world/verbs.hpp"

namespace shoal::test {
namespace {

using Clock = std::chrono::steady_clock;

/// Compares nothing before the group has said that all rows came.
void run_low_latency(GpuGroup& group, const EpCase& c) {
  GpuLowLatencyRound round(group, c, {});
  const ep::LowLatencyReceived got = round.send().receive();
  group.group.synchronize();
  round.check(got);
  round.write_expert_output();
  const Tensor out = round.combine(got).receive();
  group.group.synchronize();
  round.check(out);
}

/// Rounds without end; `pe.argument` names the mode.
SHOAL_PE_BODY(internode_rounds_for_ever) {
  try {
    World world = World::open({pe.settings, nullptr});
    const EpCase c = nodes_case(world.n_pes(), world.n_pes(), 1);
    GpuGroup group(world, options_for(c));
    for (int i = 0;; ++i) {
      if (pe.argument == "normal")
        GpuRound(group, c, {}).run();
      else
        run_low_latency(group, c);
      if (i == 5) {
        std::puts("running");
        std::fflush(stdout);
      }
    }
  } catch (const Error& error) {
    print_error(error);
  }
  _exit(0);  // the world has failed and cannot be closed
}

/// Mode, and which of proxy and nic executes the transfers of kernels.
using Way = std::tuple<std::string, std::string>;

std::string name_of_way(const testing::TestParamInfo<Way>& tested) {
  const auto& [mode, by] = tested.param;
  return mode + "_by_" + by;
}

Environment environment_of(const std::string& by) {
  Environment environment = {{"SHOAL_GDA", "off"},
                             {"SHOAL_HEAP", "cuda"},
                             {"SHOAL_NODE_SIZE", "1"},
                             {"SHOAL_TRANSPORT_BETWEEN", "cuda_p2p"}};
  if (by == "nic") {
    environment = kernel_queues_environment();
    environment["SHOAL_CUDA_HANDLE"] = "pinned";
  }
  environment.insert({{"CUDA_DEVICE_MAX_CONNECTIONS", "32"},
                      {"CUDA_MODULE_LOADING", "EAGER"},
                      {"SHOAL_EP_BETWEEN_NODES", "kernels"},
                      {"SHOAL_SYMMETRIC_SIZE", "256M"},
                      {"SHOAL_TIMEOUT_MS", "4000"}});
  return environment;
}

class EpGpuKilledNode : public WithVerbs, public testing::WithParamInterface<Way> {
 protected:
  void SetUp() override {
    if (std::get<1>(GetParam()) == "nic") WithVerbs::SetUp();
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, EpGpuKilledNode,
                         testing::Combine(testing::Values("normal", "low_latency"),
                                          testing::Values("proxy", "nic")),
                         name_of_way);

TEST_P(EpGpuKilledNode, IsReported) {
  SHOAL_SKIP_WITHOUT_GPU();
  // Kernels that wait for each other would have to take turns.
  if (gpu_count() < 2) GTEST_SKIP() << "needs two GPUs";
  const auto& [mode, by] = GetParam();
  PeGroup group =
      start_pes(2, "internode_rounds_for_ever", {.env = environment_of(by), .argument = mode});
  for (Process& process : group.pes)
    ASSERT_TRUE(process.wait_for_output("running", std::chrono::seconds(60)))
        << process.out() << process.err();
  group.pes[1].send(SIGKILL);
  const auto results = wait_all(group.pes);
  EXPECT_EQ(results[1].signal, SIGKILL);
  const std::string& said = results[0].out;
  EXPECT_TRUE(results[0].ok()) << results[0].describe();
  EXPECT_TRUE(said.find("code=timeout") != std::string::npos ||
              said.find("code=peer_failed") != std::string::npos)
      << results[0].describe();
  expect_parts(said, {"PE 1"});
  EXPECT_TRUE(said.find("dispatch") != std::string::npos ||
              said.find("combine") != std::string::npos)
      << results[0].describe();
}

}  // namespace
}  // namespace shoal::test
