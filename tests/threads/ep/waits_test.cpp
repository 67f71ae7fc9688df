// SPDX-License-Identifier: Apache-2.0
// Ranks that block in an operation of a group are woken by the signals of the others.
#include <gtest/gtest.h>

#include <functional>

#include "checks/ep/rounds.hpp"
#include "checks/world/waits.hpp"
#include "shoal/world.hpp"

namespace shoal::test {
namespace {

EpCase small() {
  return {.ranks = 2, .experts = 4, .top_k = 2, .hidden = 64, .max_tokens = 12, .seed = 5};
}

/// Runs operations in which rank 1 waits for rank 0, until one of them wakes rank 1. At the time of
/// a signal, rank 1 may be looking by itself.
void check_wakes(const std::function<std::function<void()>(World&, ep::Group&)>& make_run) {
  Settings settings;
  settings.symmetric_size = std::size_t{64} << 20;
  settings.timeout = std::chrono::seconds(20);
  run_threads(2, settings, [&](World& world) {
    ep::Group group(world.team(), options_for(small()));
    const std::function<void()> run = make_run(world, group);
    constexpr int kRounds = 50;
    const WaitPoint& waiter = wait_point_of(world, 1);
    const std::uint64_t before = waiter.wakes();
    for (int i = 0; i < kRounds; ++i) {
      if (world.my_pe() == 0) await_block(waiter);
      run();
    }
    if (world.my_pe() == 1) EXPECT_GE(waiter.wakes() - before, kRounds / 2);
  });
}

TEST(EpWaits, SignalsOfNormalModeWake) {
  check_wakes([](World& world, ep::Group& group) {
    return [&group, round = NormalRound(small(), world.my_pe())] { round.run(group); };
  });
}

TEST(EpWaits, SignalsOfLowLatencyModeWake) {
  check_wakes([](World& world, ep::Group& group) {
    return [&group, round = LowLatencyRound(small(), world.my_pe(), ep::Reduction::per_rank)] {
      round.run(group, false);
    };
  });
}

}  // namespace
}  // namespace shoal::test
