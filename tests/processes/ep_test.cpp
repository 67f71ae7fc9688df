// SPDX-License-Identifier: Apache-2.0
// EP with a process per PE: the same checks over shared memory.
#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <thread>

#include "checks/ep/normal.hpp"
#include "shoal/world.hpp"
#include "support/process/process.hpp"

namespace shoal::test {
namespace {

EpCase shape(std::int32_t ranks) {
  return {.ranks = ranks, .experts = ranks * 4, .top_k = 6, .hidden = 512, .max_tokens = 30};
}

SHOAL_PE_BODY(both_modes) {
  World world = World::open({pe.settings, nullptr});
  const EpCase c = shape(world.n_pes());
  ep::Group group(world.team(), options_for(c));
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    EpCase now = c;
    now.seed = seed;
    check_normal(group, now);
    check_low_latency(group, now, ep::Reduction::per_rank, seed % 2 == 0);
    check_low_latency_fp8(group, now, ep::Quantize::fp8_ue8m0);
  }
  group.close();
  world.close();
}

TEST(EpProcesses, BothModesMatchTheReference) {
  for (const std::int32_t ranks : {1, 3, 8}) expect_success(run_pes(ranks, "both_modes"));
}

std::chrono::nanoseconds processor_time() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

SHOAL_PE_BODY(idle_between_send_and_receive) {
  World world = World::open({pe.settings, nullptr});
  const EpCase c = shape(world.n_pes());
  ep::Group group(world.team(), options_for(c));
  const Inputs in(c, world.my_pe());
  const auto idle = [] {
    const auto before = processor_time();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return processor_time() - before;
  };
  constexpr std::chrono::milliseconds kAllowed(5);  // a thread that polled would take 50
  for (int i = 0; i < 3; ++i) {
    ep::PendingDispatch rows =
        group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none});
    EXPECT_LT(idle(), kAllowed);
    const ep::LowLatencyReceived got = rows.receive();
    ep::PendingCombine pending =
        group.low_latency_combine(got.x, in.topk_idx, in.weights, got.handle);
    EXPECT_LT(idle(), kAllowed);
    pending.receive();
  }
  group.close();
  world.close();
}

TEST(EpProcesses, NothingRunsBetweenSendAndReceive) {
  expect_success(run_pes(2, "idle_between_send_and_receive"));
}

}  // namespace
}  // namespace shoal::test
