// SPDX-License-Identifier: Apache-2.0
// Operations of groups as shown in the record of the process (shoal/observe.hpp).
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "checks/ep/normal.hpp"
#include "shoal/collective.hpp"
#include "shoal/observe.hpp"
#include "shoal/world.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using observe::GroupRecord;
using observe::OperationRecord;

/// The record of the only group of this PE.
GroupRecord own_group(const World& world) {
  std::vector<GroupRecord> found;
  for (const auto& pe : observe::read_process())
    if (pe.pe == world.my_pe() && pe.n_pes == world.n_pes())
      found.insert(found.end(), pe.groups.begin(), pe.groups.end());
  EXPECT_EQ(found.size(), 1U);
  return found.empty() ? GroupRecord{} : found[0];
}

void pair(ep::Group& group, const Inputs& in, const ep::Routing& routing) {
  const ep::Dispatched got = group.dispatch(in.x, routing);
  group.combine(got.x, got.handle);
}

TEST(EpObserve, RecordsOperationsWithTheirPhasesRowsAndBytes) {
  const EpCase c = uneven_case(3, 5);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    pair(group, in, routing);
    auto pending = group.low_latency_dispatch(in.x, in.topk_idx);
    EXPECT_EQ(own_group(world).operations.back().state, "sent");
    const auto got = pending.receive();

    const GroupRecord seen = own_group(world);
    EXPECT_EQ(seen.rank, world.my_pe());
    ASSERT_EQ(seen.operations.size(), 3U);
    const auto rows = std::accumulate(routing.counts->tokens_per_rank.begin(),
                                      routing.counts->tokens_per_rank.end(), std::uint64_t{0});
    const std::vector<std::string> names = {"dispatch", "combine", "low_latency_dispatch"};
    const std::vector<std::vector<std::string>> phases = {{"notify", "send", "receive"},
                                                          {"send", "notify", "receive", "finish"},
                                                          {"send", "between", "receive"}};
    const std::vector<std::uint64_t> epochs = {1, 2, 1};
    for (std::size_t i = 0; i < 3; ++i) {
      const OperationRecord& op = seen.operations[i];
      EXPECT_EQ(op.id, i + 1);
      EXPECT_EQ(op.operation, names[i]);
      EXPECT_EQ(op.state, "completed");
      EXPECT_EQ(op.epoch, epochs[i]);
      EXPECT_EQ(op.rows, rows);
      EXPECT_FALSE(op.waiting);
      std::vector<std::string> of_op;
      std::int64_t last = op.start_ns;
      for (const auto& phase : op.phases) {
        of_op.push_back(phase.name);
        EXPECT_GE(phase.start_ns, last);
        last = phase.start_ns;
      }
      EXPECT_EQ(of_op, phases[i]);
      EXPECT_GE(op.end_ns, last);
    }
    EXPECT_EQ(seen.operations[0].bytes, rows * static_cast<std::uint64_t>(c.hidden) * 2);
    sync(world.team());
  });
}

TEST(EpObserve, CountersAgreeWithStatistics) {
  const EpCase c = small_case(3, 6);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    auto options = options_for(c);
    options.preinitialize = true;  // which is not counted
    ep::Group group(world.team(), options);
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    for (int i = 0; i < 4; ++i) pair(group, in, routing);
    const ep::Statistics counted = group.statistics();
    const GroupRecord seen = own_group(world);
    ASSERT_EQ(seen.totals.size(), 4U);
    EXPECT_EQ(seen.totals[0].operations, counted.dispatches);
    EXPECT_EQ(seen.totals[1].operations, counted.combines);
    EXPECT_EQ(seen.totals[0].rows, counted.rows_sent);
    EXPECT_EQ(seen.totals[0].time_ns, counted.dispatch_time.count());
    EXPECT_EQ(seen.totals[2].operations, 0U);
    std::int64_t waited = 0;
    ASSERT_EQ(seen.peers.size(), 3U);
    for (std::int32_t rank = 0; rank < c.ranks; ++rank) {
      EXPECT_EQ(seen.peers[rank].rows, 4U * routing.counts->tokens_per_rank[rank]);
      waited += seen.peers[rank].wait_ns;
    }
    EXPECT_EQ(waited, counted.wait_time.count());
    const ExpectedDispatch wanted = expected_dispatch(c, world.my_pe());
    std::vector<std::uint64_t> expected(wanted.tokens_per_expert.begin(),
                                        wanted.tokens_per_expert.end());
    for (std::uint64_t& rows : expected) rows *= 4;
    EXPECT_EQ(seen.expert_rows, expected);
    EXPECT_EQ(seen.first_expert, c.first_of(world.my_pe()));
    // Every phase of every operation is in one bucket; the phases of an operation add up to it.
    std::int64_t in_phases = 0;
    for (const auto& histogram : seen.histograms) {
      EXPECT_EQ(histogram.count, 4U) << histogram.operation << ' ' << histogram.phase;
      EXPECT_EQ(std::accumulate(histogram.buckets.begin(), histogram.buckets.end(), 0U), 4U);
      if (histogram.operation == "dispatch") in_phases += histogram.sum_ns;
    }
    EXPECT_EQ(seen.histograms.size(), 7U);
    EXPECT_EQ(in_phases, counted.dispatch_time.count());
    sync(world.team());
  });
}

TEST(EpObserve, KeepsTheLastOperationsAndCanBeTurnedOff) {
  const EpCase c = small_case(2, 7);
  Settings settings = ep_settings();
  settings.flight_entries = 3;
  settings.metrics = "off";
  run_threads(c.ranks, settings, [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    for (int i = 0; i < 4; ++i) pair(group, in, routing);
    const GroupRecord seen = own_group(world);
    ASSERT_EQ(seen.operations.size(), 3U);
    EXPECT_EQ(seen.operations[0].id, 6U);
    EXPECT_EQ(seen.operations[2].epoch, 8U);
    EXPECT_TRUE(seen.histograms.empty());
    EXPECT_EQ(seen.totals[0].operations, 0U);
    EXPECT_EQ(group.statistics().dispatches, 4U);
    sync(world.team());
  });
  settings.flight_entries = 0;
  run_threads(c.ranks, settings, [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    pair(group, in, group.route(in.topk_idx));
    EXPECT_TRUE(own_group(world).operations.empty());
    sync(world.team());
  });
}

TEST(EpObserve, NamesTheRankThatIsBehind) {
  const EpCase c = small_case(3, 8);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    pair(group, in, routing);
    sync(world.team());
    if (world.my_pe() == 1) {  // until the others wait for it
      const auto deadline = std::chrono::steady_clock::now() + world.settings().timeout / 2;
      std::string text;
      do {
        text = observe::who_waits(observe::read_process());
      } while (text.find("ranks 0 and 2 wait for it") == std::string::npos &&
               std::chrono::steady_clock::now() < deadline);
      expect_parts(text, {"rank 1 (PE 1) is behind: ranks 0 and 2 wait for it",
                          "it completed combine 2", "dispatch 3, phase notify, waits for rank 1"});
    }
    pair(group, in, routing);
    EXPECT_FALSE(own_group(world).operations.back().waiting);
    sync(world.team());
  });
}

TEST(EpObserve, AGroupThatFailsWritesItsRecordWhereTheSettingSays) {
  const EpCase c = small_case(2, 9);
  const auto folder =
      std::filesystem::temp_directory_path() / ("shoal-observe-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  Settings settings = ep_settings();
  settings.flight_dir = folder;
  run_threads(c.ranks, settings, [&](World& world) {
    auto options = options_for(c);
    options.timeout = std::chrono::milliseconds(100);
    ep::Group group(world.team(), options);
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    if (world.my_pe() == 0)
      expect_error(Code::timeout, "from PE 1", [&] { group.dispatch(in.x, routing); });
    sync(world.team());
    if (world.my_pe() == 1)
      expect_error(Code::closed, "PE 0 has given this group up",
                   [&] { group.dispatch(in.x, routing); });
    EXPECT_THROW(observe::write_flight_record(world, folder / "missing"), Error);
    sync(world.team());
  });
  for (const char* const name : {"shoal_flight_0.json", "shoal_flight_1.json"})
    EXPECT_TRUE(std::filesystem::exists(folder / name)) << name;
  std::ifstream stream(folder / "shoal_flight_0.json");
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  expect_parts(text, {R"("state":"failed")", R"("awaited":1)", R"("waiting":true)", "timed out"});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 2);
  std::filesystem::remove_all(folder);
}

TEST(EpObserve, AClosedGroupLeavesTheRecord) {
  const EpCase c = small_case(2, 10);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    {
      ep::Group group(world.team(), options_for(c));
      EXPECT_EQ(own_group(world).number, 1U);
      sync(world.team());
    }
    for (const auto& pe : observe::read_process())
      if (pe.pe == world.my_pe()) EXPECT_TRUE(pe.groups.empty());
    ep::Group next(world.team(), options_for(c));
    const GroupRecord seen = own_group(world);
    EXPECT_EQ(seen.number, 2U);
    EXPECT_TRUE(seen.operations.empty());  // the memory is zero again
    sync(world.team());
  });
}

}  // namespace
}  // namespace shoal::test
