// SPDX-License-Identifier: Apache-2.0
// How long a wait polls before it blocks, and which of several words it blocks on.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "pe/wait_order.hpp"
#include "pe/wait_times.hpp"

namespace shoal::test {
namespace {

using detail::WaitTimes;
using std::chrono::microseconds;

TEST(WaitTimes, ACorePerPeKeepsPollingAndYielding) {
  const WaitTimes one = detail::wait_times(100, 8, 8, 8);
  EXPECT_FALSE(one.crowded);
  EXPECT_EQ(one.polls, 100);
  EXPECT_EQ(one.yield, microseconds(500));
  EXPECT_EQ(one.shortest_block, microseconds(50));
  EXPECT_EQ(one.longest_block, microseconds(1000));
  EXPECT_EQ(detail::wait_times(100, 2, 1, 64), one);
}

TEST(WaitTimes, SharedCoresPollLessAndLookRarely) {
  const WaitTimes shared = detail::wait_times(100, 9, 1, 8);
  EXPECT_TRUE(shared.crowded);
  EXPECT_EQ(shared.polls, 50);
  EXPECT_EQ(shared.yield, microseconds(500));
  EXPECT_EQ(shared.longest_block, microseconds(2000));
  // A failure is seen within 20 ms however many PEs share a core.
  const WaitTimes many = detail::wait_times(100, 256, 256, 2);
  EXPECT_EQ(many.polls, 0);
  EXPECT_EQ(many.yield, microseconds(0));
  EXPECT_EQ(many.longest_block, microseconds(20'000));
  EXPECT_LE(many.shortest_block, many.longest_block);
}

// A yield to another process changes the address space, so fewer of them yield.
TEST(WaitTimes, ManyProcessesPerCoreBlockAtOnce) {
  EXPECT_EQ(detail::wait_times(100, 64, 1, 2).yield, microseconds(500));
  EXPECT_EQ(detail::wait_times(100, 65, 1, 2).yield, microseconds(0));
  EXPECT_EQ(detail::wait_times(100, 32, 32, 2).yield, microseconds(500));
  EXPECT_EQ(detail::wait_times(100, 33, 33, 2).yield, microseconds(0));
}

TEST(YieldWatch, ASlowYieldPausesYields) {
  const WaitTimes times = detail::wait_times(100, 8, 8, 2);
  EXPECT_EQ(times.slow_yield, microseconds(200));
  EXPECT_EQ(detail::wait_times(100, 64, 1, 2).slow_yield, microseconds(1000));
  detail::YieldWatch watch;
  const detail::YieldWatch::Clock::time_point start{std::chrono::hours(1)};
  EXPECT_TRUE(watch.may_yield(start));
  watch.yielded(times, start, start + microseconds(200));
  EXPECT_TRUE(watch.may_yield(start));
  const auto end = start + microseconds(201);
  watch.yielded(times, start, end);
  EXPECT_FALSE(watch.may_yield(end));
  EXPECT_FALSE(watch.may_yield(end + detail::YieldWatch::kPause - microseconds(1)));
  EXPECT_TRUE(watch.may_yield(end + detail::YieldWatch::kPause));
}

/// Number of times that a PE blocks that needs the words of `order.size()` writers, which run in
/// this order.
template <typename Pick>
int blocks(const std::vector<std::size_t>& order, Pick&& pick) {
  std::vector<bool> arrived(order.size(), false);
  int count = 0;
  std::size_t next = 0, awaited = order.size();
  for (std::size_t ran = 0; ran <= order.size(); ++ran) {
    if (ran > 0) arrived[order[ran - 1]] = true;
    if (awaited < order.size() && !arrived[awaited]) continue;  // still blocked
    while (next < order.size() && arrived[next]) ++next;
    if (next == order.size()) return count;
    awaited = pick(next, arrived);
    ++count;
  }
  return count;
}

TEST(WaitOrder, AnyOrderOfWritersCostsFewBlocks) {
  constexpr std::size_t kWriters = 256;
  std::vector<std::size_t> ascending(kWriters);
  std::iota(ascending.begin(), ascending.end(), 0u);
  std::vector<std::size_t> descending(ascending.rbegin(), ascending.rend());
  for (const auto& order : {ascending, descending}) {
    double sum = 0;
    constexpr int kSeeds = 200;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed)
      sum += blocks(order, [&](std::size_t next, const std::vector<bool>& arrived) {
        return detail::pick_missing(next, kWriters, detail::mixed(seed),
                                    [&](std::size_t i) { return arrived[i]; });
      });
    EXPECT_LT(sum / kSeeds, 3 * std::log(kWriters));
  }
  const auto first = [](std::size_t next, const std::vector<bool>&) { return next; };
  EXPECT_EQ(blocks(ascending, first), 256);  // what the choice avoids
}

// PEs that run in the same order each time block once.
TEST(WaitOrder, TheLastToComeIsAwaitedFirst) {
  constexpr std::size_t kWriters = 64;
  std::vector<std::size_t> order(kWriters);
  std::iota(order.begin(), order.end(), 0u);
  std::swap(order[5], order[63]);
  detail::WaitOrder wait;
  const auto pick = [&](std::size_t next, const std::vector<bool>& arrived) {
    return wait.pick(next, kWriters, 7, [&](std::size_t i) { return arrived[i]; });
  };
  blocks(order, pick);
  EXPECT_EQ(blocks(order, pick), 1);
  EXPECT_EQ(blocks(order, pick), 1);
}

TEST(WaitOrder, PicksWordsThatAreMissing) {
  const std::vector<bool> arrived{true, false, true, true, false, true};
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const std::size_t picked =
        detail::pick_missing(1, arrived.size(), seed, [&](std::size_t i) { return arrived[i]; });
    EXPECT_TRUE(picked == 1 || picked == 4) << picked;
  }
  EXPECT_EQ(detail::pick_missing(2, 3, 1, [](std::size_t) { return true; }), 2u);
}

}  // namespace
}  // namespace shoal::test
