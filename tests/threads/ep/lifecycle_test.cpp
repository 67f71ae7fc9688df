// SPDX-License-Identifier: Apache-2.0
// Statistics of a group, the resources that it owns, and their release.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <numeric>
#include <thread>

#include "checks/ep/normal.hpp"
#include "checks/world/waits.hpp"
#include "shoal/collective.hpp"
#include "shoal/world.hpp"
#include "support/expect_error.hpp"
#include "support/wait_for.hpp"

namespace shoal::test {
namespace {

TEST(EpLifecycle, StatisticsCountEveryOperationAndRow) {
  const EpCase c = small_case(4, 5);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const std::int32_t me = world.my_pe();
    const Inputs in(c, me);
    const ep::Routing routing = group.route(in.topk_idx);
    ep::Dispatched first = group.dispatch(in.x, routing);
    const ep::Handle handle = first.handle;
    EXPECT_EQ(handle.received_rows(), first.rows);
    for (int i = 0; i < 3; ++i) group.combine(group.dispatch(in.x, handle).x, handle);
    group.combine(first.x, handle);
    for (int i = 0; i < 2; ++i) check_low_latency(group, c, ep::Reduction::exact, false);
    group.low_latency_dispatch(in.x, in.topk_idx).receive();
    group.dispatch_async(in.x, routing).get();

    const ep::Statistics seen = group.statistics();
    EXPECT_EQ(seen.dispatches, 5U);
    EXPECT_EQ(seen.combines, 4U);
    EXPECT_EQ(seen.low_latency_dispatches, 3U);
    EXPECT_EQ(seen.low_latency_combines, 2U);
    // A token crosses once to each rank that holds an expert of it, in both modes.
    const auto& sent = routing.counts->tokens_per_rank;
    EXPECT_EQ(seen.rows_sent, 8U * std::accumulate(sent.begin(), sent.end(), 0U));
    EXPECT_EQ(seen.rows_received, 8U * expected_dispatch(c, me).source_token.size());
    for (const auto time : {seen.dispatch_time, seen.combine_time, seen.low_latency_dispatch_time,
                            seen.low_latency_combine_time})
      EXPECT_GT(time.count(), 0);
    EXPECT_LE(seen.wait_time, seen.dispatch_time + seen.combine_time +
                                  seen.low_latency_dispatch_time + seen.low_latency_combine_time);
    sync(world.team());
  });
}

TEST(EpLifecycle, WaitTimeIsThatOfALateRank) {
  const EpCase c = small_case(2, 6);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    if (world.my_pe() == 1) await_block(wait_point_of(world, 0));
    group.dispatch(in.x, routing);
    if (world.my_pe() == 0) EXPECT_GT(group.statistics().wait_time.count(), 0);
    sync(world.team());
  });
}

TEST(EpLifecycle, OptionsAreThoseGiven) {
  const EpCase c = small_case(2);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.dtype = DataType::float32;
    options.max_scales = 7;
    options.live_results = 3;
    options.threads = 2;
    options.timeout = std::chrono::milliseconds(12'345);
    ep::Group group(world.team(), options);
    const ep::GroupOptions& seen = group.options();
    EXPECT_EQ(seen.max_tokens, c.max_tokens);
    EXPECT_EQ(seen.low_latency_max_tokens, c.max_tokens);
    EXPECT_EQ(seen.hidden, c.hidden);
    EXPECT_EQ(seen.top_k, c.top_k);
    EXPECT_EQ(seen.experts, c.experts);
    EXPECT_EQ(seen.dtype, DataType::float32);
    EXPECT_EQ(seen.max_scales, 7);
    EXPECT_EQ(seen.live_results, 3);
    EXPECT_EQ(seen.threads, 2);
    EXPECT_EQ(seen.timeout, options.timeout);
    EXPECT_EQ(group.local_experts(), c.local_experts());
    EXPECT_EQ(group.team().size(), c.ranks);
  });
}

TEST(EpLifecycle, TakesTheMemoryThatSizeHintSays) {
  const EpCase c = small_case(4);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    for (const std::int64_t tokens : {0, 9})
      for (const std::int64_t low_latency_tokens : {0, 5})
        for (const std::int32_t live_results : {1, 2, 3})
          for (const bool staging : {false, true}) {
            if (tokens + low_latency_tokens == 0) continue;
            ep::GroupOptions options = options_for(c);
            options.max_tokens = tokens;
            options.low_latency_max_tokens = low_latency_tokens;
            options.live_results = live_results;
            options.combine_staging = staging;
            const std::size_t before = world.heap().used();
            ep::Group group(world.team(), options);
            EXPECT_EQ(world.heap().used() - before, ep::size_hint(options, c.ranks).total());
            group.close();
          }
  });
}

TEST(EpLifecycle, MovingAGroupMovesItsMemory) {
  const EpCase c = small_case(3), other = small_case(3, 9);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    const std::size_t none = world.heap().used();
    ep::Group group(world.team(), options_for(c));
    const std::size_t one = world.heap().used();
    ep::Group second(world.team(), options_for(other));
    EXPECT_GT(world.heap().used(), one);
    group = std::move(second);  // drops what `group` had
    check_normal(group, other);
    expect_error(Code::closed, "closed",
                 [&] { second.warmup(); });  // NOLINT(bugprone-use-after-move)
    ep::Group third(std::move(group));
    check_low_latency(third, other, ep::Reduction::exact, false);
    third = ep::Group();
    ep::Group last(world.team(), options_for(c));  // releases what all ranks have dropped
    EXPECT_EQ(world.heap().used(), one);
    last.close();
    EXPECT_EQ(world.heap().used(), none);
  });
}

std::ptrdiff_t entries(const char* directory) {
  return std::distance(std::filesystem::directory_iterator(directory), {});
}

/// Waits briefly for `count` to fall, because a joined thread disappears from /proc with a delay.
void expect_entries(const char* directory, std::ptrdiff_t count) {
  wait_for([&] { return entries(directory) <= count; });
  EXPECT_EQ(entries(directory), count) << directory;
}

TEST(EpLifecycle, TwoHundredGroupsLeaveNothingBehind) {
  const EpCase c = small_case(2);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    const auto cycle = [&](bool close) {
      ep::GroupOptions options = options_for(c);
      options.threads = 2;
      ep::Group group(world.team(), options);
      const Inputs in(c, world.my_pe());
      group.dispatch_async(in.x, group.route(in.topk_idx)).get();  // starts the group's stream
      group.low_latency_dispatch(in.x, in.topk_idx).receive();
      if (close) group.close();
    };
    cycle(true);
    const std::size_t used = world.heap().used();
    std::ptrdiff_t files = 0, threads = 0;
    sync(world.team());
    if (world.my_pe() == 0) {
      files = entries("/proc/self/fd");
      threads = entries("/proc/self/task");
    }
    sync(world.team());
    for (int i = 0; i < 201; ++i) cycle(i % 2 == 0);
    EXPECT_EQ(world.heap().used(), used);
    sync(world.team());
    if (world.my_pe() == 0) {  // listing a directory takes a descriptor: one PE at a time
      expect_entries("/proc/self/fd", files);
      expect_entries("/proc/self/task", threads);
    }
    sync(world.team());
  });
}

TEST(EpLifecycle, TheDestructorWaitsForNoOtherRank) {
  const EpCase c = small_case(3);
  std::atomic<bool> destroyed = false;
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    const std::size_t none = world.heap().used();
    const Inputs in(c, world.my_pe());
    {
      ep::Group group(world.team(), options_for(c));
      group.dispatch(in.x, group.route(in.topk_idx));
      sync(world.team());
      // The others keep their groups until rank 0 has destroyed its own.
      if (world.my_pe() != 0) EXPECT_TRUE(wait_for([&] { return destroyed.load(); }));
    }
    if (world.my_pe() == 0) destroyed = true;
    ep::Group(world.team(), options_for(c)).close();
    EXPECT_EQ(world.heap().used(), none);
  });
}

TEST(EpLifecycle, ResultsOutliveTheirWorld) {
  const EpCase c = small_case(2, 26);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    const Inputs in(c, world.my_pe());
    ep::Group group(world.team(), options_for(c));
    const ep::Dispatched held = group.dispatch(in.x, group.route(in.topk_idx));
    const std::vector<std::byte> rows(held.x.as<std::byte>(),
                                      held.x.as<std::byte>() + held.x.bytes());
    world.close();
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), held.x.as<std::byte>()));
    expect_error(Code::closed, "combine: the group is closed that made the handle (dispatch 1)",
                 [&] { group.combine(held.x, held.handle); });
    group = ep::Group();
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), held.x.as<std::byte>()));
  });
}

/// Makes every call of a group; for groups on which each call must fail.
std::vector<std::pair<const char*, std::function<void(ep::Group&)>>> all_operations(
    const EpCase& c) {
  const auto in = std::make_shared<Inputs>(c, 0);
  return {
      {"dispatch", [=](ep::Group& g) { g.dispatch(in->x, ep::Routing{}); }},
      {"dispatch (handle)", [=](ep::Group& g) { g.dispatch(in->x, ep::Handle{}); }},
      {"combine", [=](ep::Group& g) { g.combine(in->x, ep::Handle{}); }},
      {"dispatch_async", [=](ep::Group& g) { g.dispatch_async(in->x, ep::Routing{}).get(); }},
      {"combine_async", [=](ep::Group& g) { g.combine_async(in->x, ep::Handle{}).get(); }},
      {"low_latency_dispatch", [=](ep::Group& g) { g.low_latency_dispatch(in->x, in->topk_idx); }},
      {"low_latency_combine",
       [=](ep::Group& g) {
         g.low_latency_combine(in->x, in->topk_idx, in->weights, ep::LowLatencyHandle{});
       }},
      {"next_combine_buffer", [](ep::Group& g) { g.next_combine_buffer(); }},
      {"masked", [](ep::Group& g) { g.masked(); }},
      {"set_mask", [](ep::Group& g) { g.set_mask(0, true); }},
      {"clear_masks", [](ep::Group& g) { g.clear_masks(); }},
      {"warmup", [](ep::Group& g) { g.warmup(); }},
  };
}

TEST(EpLifecycle, AClosedGroupRefusesEveryOperation) {
  const EpCase c = small_case(1);
  run_threads(1, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, 0);
    ep::PendingDispatch rows = group.low_latency_dispatch(in.x, in.topk_idx);
    group.close();
    group.close();  // does nothing
    expect_error(Code::closed, "closed", [&] { rows.receive(); });
    for (const auto& [name, operation] : all_operations(c)) {
      SCOPED_TRACE(name);
      expect_error(Code::closed, "the group is closed", [&] { operation(group); });
    }
  });
}

TEST(EpLifecycle, ADefaultConstructedGroupRefusesEveryCall) {
  const EpCase c = small_case(1);
  ep::Group group;
  group.close();
  for (const auto& [name, operation] : all_operations(c)) {
    SCOPED_TRACE(name);
    expect_error(Code::closed, "the group is closed", [&] { operation(group); });
  }
  const Inputs in(c, 0);
  expect_error(Code::closed, "route: the group is closed", [&] { group.route(in.topk_idx); });
  expect_error(Code::closed, "statistics: the group is closed", [&] { group.statistics(); });
  expect_error(Code::closed, "options: the group is closed", [&] { group.options(); });
  expect_error(Code::closed, "team: the group is closed", [&] { group.team(); });
  expect_error(Code::closed, "local_experts: the group is closed", [&] { group.local_experts(); });
  expect_error(Code::closed, "max_local_experts: the group", [&] { group.max_local_experts(); });
  expect_error(Code::closed, "first_expert: the group is closed", [&] { group.first_expert(); });
}

}  // namespace
}  // namespace shoal::test
