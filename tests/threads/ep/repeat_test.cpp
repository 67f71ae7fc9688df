// SPDX-License-Identifier: Apache-2.0
// Many operations in a row, with ranks skewed in time. Two cases alternate, so stale rows, counts
// or signals of the last two rounds would change the result.
#include <gtest/gtest.h>

#include <thread>

#include "checks/ep/rounds.hpp"
#include "shoal/world.hpp"

namespace shoal::test {
namespace {

constexpr int kRounds = 500;

EpCase small(std::uint64_t seed) {
  return {.ranks = 4, .experts = 12, .top_k = 4, .hidden = 64, .max_tokens = 12, .seed = seed};
}

/// Index of the case that a round uses. The pattern differs between the halves of a double buffer.
std::size_t case_of(int round) {
  return static_cast<std::size_t>(round % 3 == 0);
}

/// Delays a rank now and then; each rank at different times.
class Skew {
 public:
  explicit Skew(Pe pe) : state_(static_cast<std::uint64_t>(pe) * 77 + 1) {}
  void operator()() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    if (state_ >> 59 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
  }

 private:
  std::uint64_t state_;
};

void run_group(const std::function<void(World&, ep::Group&)>& body) {
  Settings settings;
  settings.symmetric_size = std::size_t{64} << 20;
  settings.timeout = std::chrono::seconds(20);
  run_threads(4, settings, [&](World& world) {
    ep::Group group(world.team(), options_for(small(1)));
    body(world, group);
  });
}

TEST(EpRepeat, NormalPairsOfTwoCasesInTurn) {
  run_group([](World& world, ep::Group& group) {
    const NormalRound rounds[] = {{small(29), world.my_pe()}, {small(30), world.my_pe()}};
    Skew skew(world.my_pe());
    for (int i = 0; i < kRounds; ++i) {
      skew();
      rounds[case_of(i)].run(group);
    }
    EXPECT_EQ(group.statistics().dispatches, kRounds);
    EXPECT_EQ(group.statistics().combines, kRounds);
  });
}

TEST(EpRepeat, LowLatencyPairsOfTwoCasesInTurn) {
  run_group([](World& world, ep::Group& group) {
    const LowLatencyRound rounds[] = {{small(9), world.my_pe(), ep::Reduction::per_rank},
                                      {small(10), world.my_pe(), ep::Reduction::exact}};
    Skew skew(world.my_pe());
    for (int i = 0; i < kRounds; ++i) {
      skew();
      rounds[case_of(i)].run(group, i % 5 < 2);
    }
    EXPECT_EQ(group.statistics().low_latency_dispatches, kRounds);
    EXPECT_EQ(group.statistics().low_latency_combines, kRounds);
  });
}

// With two operations in flight, a rank may send the next while others still read the previous one;
// only the readers' acknowledgements protect it.
TEST(EpRepeat, TwoDispatchesInFlight) {
  run_group([](World& world, ep::Group& group) {
    const LowLatencyRound rounds[] = {{small(9), world.my_pe(), ep::Reduction::exact},
                                      {small(10), world.my_pe(), ep::Reduction::exact}};
    Skew skew(world.my_pe());
    for (int i = 0; i < kRounds; ++i) {
      const LowLatencyRound &first = rounds[case_of(i)], &second = rounds[1 - case_of(i)];
      ep::PendingDispatch a = first.send(group), b = second.send(group);
      skew();
      first.check(a.receive());
      second.check(b.receive());
    }
  });
}

TEST(EpRepeat, TwoCombinesInFlight) {
  run_group([](World& world, ep::Group& group) {
    const LowLatencyRound rounds[] = {{small(9), world.my_pe(), ep::Reduction::per_rank},
                                      {small(10), world.my_pe(), ep::Reduction::exact}};
    const ep::LowLatencyReceived got[] = {rounds[0].send(group).receive(),
                                          rounds[1].send(group).receive()};
    Skew skew(world.my_pe());
    for (int i = 0; i < kRounds; ++i) {
      const std::size_t first = case_of(i), second = 1 - first;
      ep::PendingCombine a = rounds[first].combine(group, got[first], i % 2 == 0),
                         b = rounds[second].combine(group, got[second], i % 5 < 2);
      skew();
      rounds[first].check(a.receive());
      rounds[second].check(b.receive());
    }
  });
}

}  // namespace
}  // namespace shoal::test
