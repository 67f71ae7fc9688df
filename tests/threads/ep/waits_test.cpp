// SPDX-License-Identifier: Apache-2.0
// Ranks that block in an operation of a group are woken by the signals of the others.
#include <gtest/gtest.h>

#include <functional>

#include "checks/ep/rounds.hpp"
#include "checks/world/waits.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"
#include "support/world/one_core.hpp"
#include "team/teams.hpp"
#include "world/state.hpp"

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

/// A case in which every rank has two experts.
EpCase many(Pe ranks) {
  return {
      .ranks = ranks, .experts = 2 * ranks, .top_k = 4, .hidden = 64, .max_tokens = 8, .seed = 11};
}

// Groups of more than 8 ranks, which meet at their first rank; those that mask failed ranks do not.
TEST(EpWaits, ManyRanksMeetOnOneCore) {
  for (const Pe ranks : {9, 40}) {
    const EpCase c = many(ranks);
    const auto check = [&c](World& world) {
      EXPECT_EQ(state_of(world).teams().world_team().meeting, detail::Meeting::at_first);
      for (const bool mask : {false, true}) {
        ep::GroupOptions options = options_for(c);
        options.mask_failed = mask;
        ep::Group group(world.team(), options);
        const NormalRound normal(c, world.my_pe());
        const LowLatencyRound low_latency(c, world.my_pe(), ep::Reduction::per_rank);
        for (int round = 0; round < 4; ++round) {
          normal.run(group);
          low_latency.run(group, round % 2 == 1);
        }
        group.close();
      }
    };
    for (const std::string& error : run_on_one_core(ranks, check, ep_settings()))
      EXPECT_EQ(error, "");
  }
}

// A rank can tell that all others have sent, wherever their signals are.
TEST(EpWaits, ReadyWhereManyRanksMeet) {
  const EpCase c = many(9);
  const auto check = [&c](World& world) {
    ep::Group group(world.team(), options_for(c));
    const LowLatencyRound round(c, world.my_pe(), ep::Reduction::per_rank);
    ep::PendingDispatch sent = round.send(group);
    barrier(world.team());
    EXPECT_TRUE(sent.ready());
    const ep::LowLatencyReceived got = sent.receive();
    round.check(got);
    ep::PendingCombine combined = round.combine(group, got, false);
    barrier(world.team());
    EXPECT_TRUE(combined.ready());
    round.check(combined.receive());
  };
  for (const std::string& error : run_on_one_core(c.ranks, check, ep_settings()))
    EXPECT_EQ(error, "");
}

// One rank enters no operation. All others name it.
TEST(EpWaits, ARankThatDoesNotMeetTheOthersIsNamed) {
  constexpr Pe kMissing = 4;
  const EpCase c = many(12);
  const auto check = [&c](World& world) {
    ep::GroupOptions options = options_for(c);
    options.timeout = std::chrono::milliseconds(500);
    ep::Group group(world.team(), options);
    if (world.my_pe() != kMissing) {
      const NormalRound round(c, world.my_pe());
      const auto failure = [&]() -> std::string {
        try {
          round.run(group);
        } catch (const Error& error) {
          return error.what();
        }
        return "";
      }();
      expect_parts(failure, {"PE 4"});
    }
    barrier(world.team());  // the missing one stays
  };
  for (const std::string& error : run_on_one_core(c.ranks, check, ep_settings()))
    EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace shoal::test
