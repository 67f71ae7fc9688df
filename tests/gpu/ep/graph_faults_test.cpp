// SPDX-License-Identifier: Apache-2.0
// A replayed graph whose kernels give a wait up. The program makes no call of the group that could
// throw, so the fault is in the log; the next call throws it.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "checks/ep/gpu_normal.hpp"
#include "shoal/collective.hpp"
#include "support/cuda/graph.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

/// Returns the standard error of the process once it contains `text`, or after 20 s.
std::string standard_error_with(const std::string& text) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::string all;
  while (all.find(text) == std::string::npos && std::chrono::steady_clock::now() < deadline) {
    ::testing::internal::CaptureStderr();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    all += ::testing::internal::GetCapturedStderr();
  }
  return all;
}

TEST(EpGpuGraphFaults, AReplayThatGivesUpIsLoggedAndThrownByTheNextCall) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c{.ranks = 2, .experts = 4, .top_k = 2, .hidden = 128, .max_tokens = 8};
  Settings settings = gpu_settings();
  settings.metrics_interval = std::chrono::milliseconds(100);
  run_threads(c.ranks, settings, [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.low_latency_max_tokens = 0;
    options.timeout = std::chrono::milliseconds(500);
    GpuGroup g(world, options);
    CUstream_st* const stream = g.tensors.new_stream();
    GpuRound round(
        g, c,
        {.dispatch = {.worst_case_rows = c.ranks * c.max_tokens, .launch = {.stream = stream}}});
    ep::Dispatched got;
    const ep::Routing routing = round.route();
    const Graph graph(stream, [&] { got = round.dispatch(routing); });
    g.tensors.settle();
    sync(world.team());
    if (g.me == 0) {
      graph.replay();
      g.tensors.settle();  // the replay has ended, and nothing says that it has failed
      const std::string log = standard_error_with("an ep::Group has failed on the GPU");
      expect_parts(log, {"dispatch (epoch 1) timed out after 500 ms on PE 0 of 2"});
      expect_error(Code::timeout, "waiting for its counts from PE 1",
                   [&] { g.group.synchronize(); });
      expect_error(Code::closed, "failed before", [&] { round.route(); });
    }
    sync(world.team());
  });
}

}  // namespace
}  // namespace shoal::test
