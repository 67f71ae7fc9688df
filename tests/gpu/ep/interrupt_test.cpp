// SPDX-License-Identifier: Apache-2.0
// An interrupt (shoal/interrupt.hpp) ends a wait for a group's work on the GPU. The work continues,
// and the group stays usable.
#include "shoal/interrupt.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "checks/ep/gpu_normal.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using Clock = std::chrono::steady_clock;

/// Request to the thread that is to be interrupted; set once for each interrupt.
// Aligned: lld maps no page for a single byte of thread-local memory before the protected data.
alignas(64) thread_local bool interrupt_next = false;
thread_local Clock::time_point interrupt_from{};

bool check() noexcept {
  if (!interrupt_next || Clock::now() < interrupt_from) return false;
  interrupt_next = false;
  return true;
}

/// Rank 0 waits for a dispatch in which rank 1 takes part only after the interrupt.
void interrupt_synchronize(const Settings& settings, const EpCase& c) {
  run_threads(c.ranks, settings, [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.low_latency_max_tokens = 0;
    GpuGroup g(world, options);
    GpuRound round(g, c, {.dispatch = {.worst_case_rows = c.ranks * c.max_tokens}});
    round.run();
    static std::atomic<bool> was_interrupted;
    was_interrupted = false;
    sync(world.team());
    if (g.me == 1)
      while (!was_interrupted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const ep::Dispatched got = round.dispatch(round.route());
    if (g.me == 0) {
      interrupt_from = Clock::now() + std::chrono::milliseconds(50);
      interrupt_next = true;
      expect_error(Code::system, "synchronize of an ep::Group was interrupted",
                   [&] { g.group.synchronize(); });
      EXPECT_FALSE(interrupt_next);
      EXPECT_LT(Clock::now() - interrupt_from, std::chrono::seconds(2));
      was_interrupted = true;
    }
    g.group.synchronize();
    round.check(got);
    round.write_expert_output(got);
    round.check(round.combine(got));
    round.run();
  });
}

TEST(EpGpuInterrupt, SmallSynchronize) {
  SHOAL_SKIP_WITHOUT_GPU();
  set_interrupt_check(&check);
  interrupt_synchronize(gpu_settings(), small_case(2, 51));
  set_interrupt_check(nullptr);
}

}  // namespace
}  // namespace shoal::test
