// SPDX-License-Identifier: Apache-2.0
// The end of a world while asynchronous operations of its groups are queued or running.
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <thread>

#include "checks/ep/normal.hpp"
#include "shoal/world.hpp"

namespace shoal::test {
namespace {

constexpr int kRepetitions = 20;

EpCase wide(std::int32_t ranks) {
  return {.ranks = ranks,
          .experts = ranks * 2,
          .top_k = 4,
          .hidden = 512,
          .max_tokens = 512,
          .seed = 3};
}

/// Everything that must outlive the body of one PE.
struct Rank {
  Rank(const EpCase& c, std::int32_t me) : in(c, me) {}
  Inputs in;
  ep::Group group;
  ep::Routing routing;
  std::vector<std::future<ep::Dispatched>> futures;
};

/// Runs a world whose PEs queue `count` dispatches and leave them running; `end` is called last in
/// each body.
template <typename End>
std::deque<Rank> leave_running(const EpCase& c, int count, bool hold, End&& end) {
  std::deque<Rank> ranks;
  for (std::int32_t me = 0; me < c.ranks; ++me) ranks.emplace_back(c, me);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    Rank& rank = ranks[static_cast<std::size_t>(world.my_pe())];
    ep::GroupOptions options = options_for(c);
    options.live_results = count + 1;
    rank.group = ep::Group(world.team(), options);
    rank.routing = rank.group.route(rank.in.topk_idx);
    for (int i = 0; i < count; ++i) {
      auto future = rank.group.dispatch_async(rank.in.x, rank.routing);
      if (hold) rank.futures.push_back(std::move(future));
    }
    end(world);
  });
  return ranks;
}

/// A result, or an Error that names the end of the group or world.
void expect_ended(std::future<ep::Dispatched>& future) {
  ASSERT_EQ(future.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  try {
    future.get();
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == Code::closed || error.code() == Code::peer_failed ||
                error.code() == Code::timeout)
        << error.what();
  }
}

TEST(EpAsyncClose, BodyReturnsWhileFuturesAreHeld) {
  for (int i = 0; i < kRepetitions; ++i)
    for (Rank& rank : leave_running(wide(3), 3, true, [](World&) {}))
      for (auto& future : rank.futures) expect_ended(future);
}

TEST(EpAsyncClose, BodyReturnsAndFuturesAreDropped) {
  for (int i = 0; i < kRepetitions; ++i) leave_running(wide(3), 3, false, [](World&) {});
}

TEST(EpAsyncClose, WorldClosesWhileFuturesAreHeld) {
  for (int i = 0; i < kRepetitions; ++i)
    for (Rank& rank : leave_running(wide(2), 3, true, [](World& world) { world.close(); }))
      for (auto& future : rank.futures) expect_ended(future);
}

TEST(EpAsyncClose, WorldClosesAndFuturesAreDropped) {
  for (int i = 0; i < kRepetitions; ++i)
    leave_running(wide(2), 3, false, [](World& world) { world.close(); });
}

TEST(EpAsyncClose, LaterCallsThrowClosed) {
  for (Rank& rank : leave_running(wide(2), 1, true, [](World&) {})) {
    try {
      rank.group.dispatch_async(rank.in.x, rank.routing);
      FAIL() << "a dispatch on a closed world returned";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::closed);
    }
  }
}

// Only PE 0 dispatches: its operation ends by its deadline, and the world closes.
TEST(EpAsyncClose, OperationWithoutItsPeersFails) {
  const EpCase c = wide(2);
  std::deque<Rank> ranks;
  for (std::int32_t me = 0; me < c.ranks; ++me) ranks.emplace_back(c, me);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    Rank& rank = ranks[static_cast<std::size_t>(world.my_pe())];
    ep::GroupOptions options = options_for(c);
    options.timeout = std::chrono::milliseconds(200);
    rank.group = ep::Group(world.team(), options);
    if (world.my_pe() == 0)
      rank.futures.push_back(
          rank.group.dispatch_async(rank.in.x, rank.group.route(rank.in.topk_idx)));
  });
  EXPECT_THROW(ranks[0].futures[0].get(), Error);
}

// An operation that waits for a promise that is never kept.
TEST(EpAsyncClose, OperationAfterAFutureThatIsNeverReadyFails) {
  const EpCase c = wide(1);
  Rank rank(c, 0);
  std::promise<void> never;
  run_threads(1, ep_settings(), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.timeout = std::chrono::milliseconds(50);
    rank.group = ep::Group(world.team(), options);
    rank.futures.push_back(rank.group.dispatch_async(rank.in.x, rank.group.route(rank.in.topk_idx),
                                                     {}, never.get_future().share()));
  });
  try {
    rank.futures[0].get();
    FAIL() << "an operation that never began returned a result";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::closed);
  }
}

TEST(EpAsyncClose, BodyThatThrowsEndsItsQueuedOperations) {
  const EpCase c = wide(2);
  for (int i = 0; i < kRepetitions; ++i) {
    std::deque<Rank> ranks;
    EXPECT_THROW(
        {
          for (std::int32_t me = 0; me < c.ranks; ++me) ranks.emplace_back(c, me);
          run_threads(c.ranks, ep_settings(), [&](World& world) {
            Rank& rank = ranks[static_cast<std::size_t>(world.my_pe())];
            ep::GroupOptions options = options_for(c);
            options.live_results = 4;
            rank.group = ep::Group(world.team(), options);
            rank.routing = rank.group.route(rank.in.topk_idx);
            for (int n = 0; n < 3; ++n)
              rank.futures.push_back(rank.group.dispatch_async(rank.in.x, rank.routing));
            throw std::runtime_error("the body's own failure");
          });
        },
        std::exception);
    for (Rank& rank : ranks)
      for (auto& future : rank.futures) expect_ended(future);
  }
}

}  // namespace
}  // namespace shoal::test
