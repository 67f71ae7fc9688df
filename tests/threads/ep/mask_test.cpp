// SPDX-License-Identifier: Apache-2.0
// Low-latency operations without some of the ranks: masks, and ranks that time out.
// @traits slow
#include <gtest/gtest.h>

#include <future>

#include "checks/ep/rounds.hpp"
#include "shoal/collective.hpp"
#include "shoal/world.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

EpCase small(std::uint64_t seed, std::int32_t nodes) {
  return {.ranks = 4,
          .experts = 12,
          .top_k = 4,
          .hidden = 384,
          .max_tokens = 12,
          .seed = seed,
          .nodes = nodes};
}

void run_case(const EpCase& c, std::chrono::milliseconds timeout,
              const std::function<void(World&, ep::Group&)>& body) {
  Settings settings = ep_settings();
  settings.node_size = c.ranks / c.nodes;
  run_threads(c.ranks, settings, [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.mask_failed = true;
    options.timeout = timeout;
    ep::Group group(world.team(), options);
    body(world, group);
  });
}

/// The parameter: the number of nodes.
class EpMask : public testing::TestWithParam<std::int32_t> {};
INSTANTIATE_TEST_SUITE_P(Nodes, EpMask, testing::Values(1, 2, 4));

TEST_P(EpMask, ARankThatStopsIsMaskedAndTheOthersContinue) {
  const EpCase c = small(12, GetParam());
  constexpr std::int32_t kGone = 2;
  constexpr std::chrono::milliseconds kTimeout(800);
  run_case(c, kTimeout, [&](World& world, ep::Group& group) {
    check_low_latency(group, c, ep::Reduction::exact, false);
    if (world.my_pe() == kGone) {
      sync(world.team());
      return;
    }
    std::vector<int> mask(c.ranks, 0);
    mask[kGone] = 1;
    const LowLatencyRound round(c, world.my_pe(), ep::Reduction::exact, mask);
    for (int i = 0; i < 2; ++i) round.run(group, false);
    const LowLatencyRound rows(c, world.my_pe(), ep::Reduction::exact, mask, false, true);
    for (int i = 0; i < 2; ++i) rows.run(group, i == 1);
    const Inputs in(c, world.my_pe());
    std::vector<std::int64_t> waited(c.ranks);
    const auto got =
        group
            .low_latency_dispatch(in.x, in.topk_idx,
                                  {.quantize = ep::Quantize::none,
                                   .wait_ns = {waited.data(), DataType::int64, {c.ranks}}})
            .receive();
    round.check(round.combine(group, got, false).receive());
    EXPECT_LT(std::chrono::nanoseconds(waited[kGone]), kTimeout)
        << "no rank waits again for a masked rank";
    EXPECT_EQ(group.masked(), mask);
    EXPECT_THROW(group.set_mask(world.my_pe(), true), Error);
    group.clear_masks();
    EXPECT_EQ(group.masked(), std::vector<int>(c.ranks, 0));
    sync(world.team());
  });
}

// All ranks of a node stop. Waiting for them one after another would let the live ranks time out on
// each other.
TEST_P(EpMask, SeveralThatStopAreMaskedAndTheOthersContinueTogether) {
  const EpCase c = small(15, GetParam());
  constexpr std::chrono::milliseconds kTimeout(600);
  run_case(c, kTimeout, [&](World& world, ep::Group& group) {
    const std::vector<int> mask{0, 0, 1, 1};
    check_low_latency(group, c, ep::Reduction::per_rank, false);
    if (world.my_pe() < 2) {
      const LowLatencyRound round(c, world.my_pe(), ep::Reduction::per_rank, mask);
      for (int i = 0; i < 6; ++i) round.run(group, i % 2 == 0);
      EXPECT_EQ(group.masked(), mask);
    }
    sync(world.team());
  });
}

TEST_P(EpMask, ALiveRankIsMaskedAndReturns) {
  const EpCase c = small(13, GetParam());
  constexpr std::int32_t kOut = 2;
  run_case(c, std::chrono::seconds(20), [&](World& world, ep::Group& group) {
    const std::int32_t me = world.my_pe();
    // All ranks agree that the group splits into {kOut} and the others; both parts continue.
    const std::vector<int> mask = mask_of_split(kOut, me, c.ranks);
    for (const auto reduction : {ep::Reduction::exact, ep::Reduction::per_rank}) {
      const LowLatencyRound full(c, me, reduction), part(c, me, reduction, mask);
      for (int turn = 0; turn < 2; ++turn) {
        for (int i = 0; i < 3; ++i) full.run(group, i % 2 == 0);
        sync(world.team());
        for (std::int32_t rank = 0; rank < c.ranks; ++rank)
          if (mask[rank] != 0) group.set_mask(rank, true);
        EXPECT_EQ(group.masked(), mask);
        for (int i = 0; i < 5; ++i) part.run(group, i % 2 == 0);
        sync(world.team());
        if (turn == 0)
          group.clear_masks();
        else
          for (std::int32_t rank = 0; rank < c.ranks; ++rank)
            if (mask[rank] != 0) group.set_mask(rank, false);
        EXPECT_EQ(group.masked(), std::vector<int>(c.ranks, 0));
      }
      for (int i = 0; i < 5; ++i) full.run(group, i % 2 == 0);
    }
    check_normal(group, c);
  });
}

/// Runs `close(world, group)` on a PE that leaves; the others continue without it once it has, and
/// then close the world. Returns what the PE logs.
template <typename Close>
std::string log_of_leaving(std::int32_t nodes, const Close& close) {
  const EpCase c = small(16, nodes);
  constexpr std::int32_t kGone = 2;
  Settings settings = ep_settings();
  settings.node_size = c.ranks / c.nodes;
  settings.timeout = std::chrono::seconds(2);  // the PE that leaves waits as long
  std::promise<std::string> log;
  const std::shared_future<std::string> left = log.get_future().share();
  run_threads(c.ranks, settings, [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.mask_failed = true;
    options.timeout = std::chrono::seconds(60);
    ep::Group group(world.team(), options);
    check_low_latency(group, c, ep::Reduction::exact, false);
    if (world.my_pe() == kGone) {
      testing::internal::CaptureStderr();
      close(world, group);
      log.set_value(testing::internal::GetCapturedStderr());
      return;
    }
    ASSERT_EQ(left.wait_for(std::chrono::seconds(60)), std::future_status::ready);
    std::vector<int> mask(c.ranks, 0);
    mask[kGone] = 1;
    group.set_mask(kGone, true);
    for (int i = 0; i < 3; ++i)
      LowLatencyRound(c, world.my_pe(), ep::Reduction::exact, mask).run(group, i % 2 == 0);
    world.close();
  });
  return left.get();
}

TEST_P(EpMask, ARankThatLeavesEarlyClosesItsWorldWithAWarning) {
  const std::string log =
      log_of_leaving(GetParam(), [](World& world, ep::Group&) { world.close(); });
  expect_parts(log, {"PE 2 has closed its world alone"});
}

TEST_P(EpMask, ARankThatLeavesEarlyClosesItsGroupWithAWarning) {
  const std::string log = log_of_leaving(GetParam(), [](World& world, ep::Group& group) {
    group.close();
    world.close();
  });
  expect_parts(log, {"an ep::Group was closed on PE 2 alone", "PE 2 has closed its world alone"});
}

TEST(EpMaskOff, ARankThatLeavesEarlyGetsAnError) {
  std::promise<void> left;
  const std::shared_future<void> gone = left.get_future().share();
  Settings settings = ep_settings();
  settings.timeout = std::chrono::seconds(1);
  run_threads(2, settings, [&](World& world) {
    if (world.my_pe() == 1) {
      ASSERT_EQ(gone.wait_for(std::chrono::seconds(60)), std::future_status::ready);
      return;
    }
    expect_error(Code::timeout, "World::close", [&] { world.close(); });
    left.set_value();
  });
}

TEST_P(EpMask, OnlyOtherRanksCanBeMasked) {
  run_case(small(14, GetParam()), std::chrono::seconds(20), [&](World& world, ep::Group& group) {
    for (const Pe rank : {-1, 4, 99, world.my_pe()})
      expect_error(Code::invalid_argument, "allowed: 0 to 3", [&] { group.set_mask(rank, true); });
    EXPECT_EQ(group.masked(), std::vector<int>(4, 0));
  });
}

}  // namespace
}  // namespace shoal::test
