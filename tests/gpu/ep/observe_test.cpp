// SPDX-License-Identifier: Apache-2.0
// What the kernels of a group count: rows, load of experts, waits and times, in the record of the
// process and in Group::statistics; also where graphs are replayed between calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "checks/ep/gpu_low_latency.hpp"
#include "shoal/collective.hpp"
#include "shoal/observe.hpp"
#include "support/cuda/graph.hpp"

namespace shoal::test {
namespace {

using observe::GroupRecord;

/// The record of the only group of a PE of this world.
GroupRecord group_of(const World& world, Pe pe) {
  std::vector<GroupRecord> found;
  for (const auto& record : observe::read_process())
    if (record.pe == pe && record.n_pes == world.n_pes())
      found.insert(found.end(), record.groups.begin(), record.groups.end());
  EXPECT_EQ(found.size(), 1U);
  return found.empty() ? GroupRecord{} : found[0];
}

/// Rows of one dispatch of each kind, as the host backend counts them.
struct Rows {
  Rows(const EpCase& c, std::int32_t me)
      : to(static_cast<std::size_t>(c.ranks)),
        of_expert(static_cast<std::size_t>(c.local_experts())) {
    for (std::int32_t source = 0; source < c.ranks; ++source) {
      const std::vector<std::int64_t> topk = c.topk(source);
      for (std::int64_t token = 0; token < c.tokens(source); ++token)
        for (const std::int32_t rank : ranks_of(c, topk.data() + token * c.top_k)) {
          if (source == me) ++to[static_cast<std::size_t>(rank)];
          if (rank == me) ++received;
        }
    }
    const ExpectedDispatch wanted = expected_dispatch(c, me);
    for (std::size_t e = 0; e < of_expert.size(); ++e)
      of_expert[e] = static_cast<std::uint64_t>(wanted.tokens_per_expert[e]);
  }
  std::uint64_t sent() const { return std::accumulate(to.begin(), to.end(), std::uint64_t{0}); }

  std::vector<std::uint64_t> to;  ///< [ranks] copies of this rank's tokens
  std::uint64_t received = 0;     ///< copies
  std::vector<std::uint64_t> of_expert;
};

void expect_rows(GpuGroup& group, const Rows& rows, std::uint64_t times, const char* what) {
  SCOPED_TRACE(what);
  const ep::Statistics counted = group.group.statistics();
  EXPECT_EQ(counted.rows_sent, times * rows.sent());
  EXPECT_EQ(counted.rows_received, times * rows.received);
  const GroupRecord seen = group_of(group.world, group.me);
  ASSERT_EQ(seen.peers.size(), rows.to.size());
  for (std::size_t rank = 0; rank < rows.to.size(); ++rank)
    EXPECT_EQ(seen.peers[rank].rows, times * rows.to[rank]) << "to rank " << rank;
  ASSERT_EQ(seen.expert_rows.size(), rows.of_expert.size());
  for (std::size_t expert = 0; expert < rows.of_expert.size(); ++expert)
    EXPECT_EQ(seen.expert_rows[expert], times * rows.of_expert[expert]) << "expert " << expert;
}

/// Operations 0 to 3 as in `totals`: `times` of two of them.
void expect_operations(GpuGroup& group, std::size_t first, std::uint64_t times) {
  const GroupRecord seen = group_of(group.world, group.me);
  for (std::size_t op = 0; op < 4; ++op)
    EXPECT_EQ(seen.totals[op].operations, op / 2 == first / 2 ? times : 0) << "operation " << op;
  for (const auto& histogram : seen.histograms) {
    if (histogram.phase == "queued") continue;
    EXPECT_EQ(histogram.count, times) << histogram.operation << ' ' << histogram.phase;
    EXPECT_LT(histogram.sum_ns, 60'000'000'000) << histogram.operation << ' ' << histogram.phase;
  }
}

class EpGpuObserve : public ::testing::TestWithParam<std::int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EpGpuObserve, ::testing::Values(1, 2, 4));

void run_normal(const EpCase& c, const Settings& settings,
                const std::function<void(GpuGroup&)>& body) {
  run_threads(c.ranks, settings, [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.low_latency_max_tokens = 0;
    GpuGroup group(world, options);
    group.group.warmup();  // which does not count
    body(group);
    sync(world.team());
  });
}

/// With kernels that count.
void run_low_latency(const EpCase& c, const std::function<void(GpuGroup&)>& body) {
  Settings settings = gpu_settings();
  settings.metrics = "all";
  run_threads(c.ranks, settings, [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.max_tokens = 0;
    GpuGroup group(world, options);
    group.group.warmup();
    body(group);
    sync(world.team());
  });
}

TEST_P(EpGpuObserve, NormalModeCountsRows) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(GetParam(), 3);
  run_normal(c, gpu_settings(), [&](GpuGroup& group) {
    const Rows rows(c, group.me);
    GpuRound round(group, c, {.place = OutputPlace::in_place});
    ep::Dispatched got = round.dispatch(round.route());
    round.write_expert_output(got);
    round.check(round.combine(got));
    const ep::Handle handle = got.handle;
    got = {};
    got = round.dispatch(handle);
    round.write_expert_output(got);
    round.check(round.combine(got));
    group.group.synchronize();
    expect_rows(group, rows, 2, "a dispatch, and one with its handle");
    expect_operations(group, 0, 2);
    const GroupRecord seen = group_of(group.world, group.me);
    EXPECT_EQ(seen.totals[0].rows, 2 * rows.sent());
    EXPECT_EQ(seen.totals[0].bytes, 2 * rows.sent() * static_cast<std::uint64_t>(c.hidden) * 2);
    EXPECT_EQ(seen.totals[1].rows, 2 * rows.sent()) << "a combine fetches what was sent";
  });
}

TEST_P(EpGpuObserve, ExpertMajorCountsARowForEachExpert) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(GetParam(), 5);
  run_normal(c, gpu_settings(), [&](GpuGroup& group) {
    GpuCall call{.place = OutputPlace::in_place};
    call.dispatch.expert_major = true;
    call.dispatch.expert_alignment = 4;
    GpuRound round(group, c, call);
    const ep::Dispatched got =
        group.group.dispatch(round.x(), round.route(), round.dispatch_options());
    group.group.synchronize();
    std::uint64_t sent = 0, received = 0;
    for (const std::int64_t expert : c.topk(group.me)) sent += expert >= 0 ? 1 : 0;
    for (const std::int64_t rows : got.rows_per_source)
      received += static_cast<std::uint64_t>(rows);
    EXPECT_EQ(group.group.statistics().rows_sent, sent);
    EXPECT_EQ(group.group.statistics().rows_received, received);
    const GroupRecord seen = group_of(group.world, group.me);
    const ExpectedDispatch wanted = expected_dispatch(c, group.me);
    for (std::size_t expert = 0; expert < seen.expert_rows.size(); ++expert)
      EXPECT_EQ(seen.expert_rows[expert],
                static_cast<std::uint64_t>(wanted.tokens_per_expert[expert]));
  });
}

TEST_P(EpGpuObserve, LowLatencyModeCountsRows) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = wide_case(GetParam(), 7);
  for (const bool defer : kDeferrals)
    run_low_latency(c, [&](GpuGroup& group) {
      const Rows rows(c, group.me);
      for (const ep::Quantize quantize : {ep::Quantize::none, ep::Quantize::fp8})
        GpuLowLatencyRound(group, c, {.quantize = quantize, .defer_receive = defer}).run();
      group.group.synchronize();
      expect_rows(group, rows, 2, defer ? "deferred" : "immediate");
      expect_operations(group, 2, 2);
      const GroupRecord seen = group_of(group.world, group.me);
      EXPECT_EQ(seen.totals[2].bytes, rows.sent() * static_cast<std::uint64_t>(c.hidden) * 3);
      EXPECT_EQ(seen.totals[3].rows, 2 * rows.sent());
      sync(group.world.team());
    });
}

TEST_P(EpGpuObserve, ReplaysAndCallsOfNormalModeMix) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = small_case(GetParam(), 9);
  c.holes = 0;
  run_normal(c, gpu_settings(), [&](GpuGroup& group) {
    CUstream_st* const stream = group.tensors.new_stream();
    GpuRound round(
        group, c,
        {.dispatch = {.worst_case_rows = c.ranks * c.max_tokens, .launch = {.stream = stream}},
         .place = OutputPlace::heap,
         .out = true,
         .combine_weights = false,
         .combine = {.stream = stream}});
    const ep::Routing routing = round.route();
    ep::Dispatched got = round.dispatch(routing);
    round.write_expert_output(got);
    round.check(round.combine(got));
    got = {};
    ep::Combined back;
    const Graph graph(stream, [&] {
      got = round.dispatch(routing);
      back = round.combine(got);
    });
    std::uint64_t pairs = 1;
    for (int i = 0; i < 4; ++i) {
      for (int replay = 0; replay <= i; ++replay, ++pairs) graph.replay();
      round.check(got);
      round.check(back);
      // A call of its own between replays, with the same tokens.
      GpuRound direct(group, c, {.place = OutputPlace::staged});
      const ep::Dispatched other = direct.dispatch(direct.route());
      direct.check(other);
      direct.write_expert_output(other);
      direct.check(direct.combine(other));
      ++pairs;
    }
    group.group.synchronize();
    expect_rows(group, Rows(c, group.me), pairs, "replays and calls");
    expect_operations(group, 0, pairs);
  });
}

TEST_P(EpGpuObserve, ReplaysAndCallsOfLowLatencyModeMix) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = wide_case(GetParam(), 11);
  for (const bool defer : kDeferrals)
    run_low_latency(c, [&](GpuGroup& group) {
      CUstream_st* const stream = group.tensors.new_stream();
      const GpuLowLatencyCall call{
          .zero_copy = true, .out = true, .launch = {.stream = stream}, .defer_receive = defer};
      GpuLowLatencyRound round(group, c, call);
      std::uint64_t pairs = 1;
      {
        const ep::LowLatencyReceived got = round.send().receive();
        round.check(got);
        round.write_expert_output();
        round.check(round.combine(got).receive());
      }
      sync(group.world.team());
      ep::LowLatencyReceived got;
      Tensor out;
      const Graph graph(stream, [&] {
        got = round.send().receive();
        round.choose_buffer();
        out = round.combine(got).receive();
      });
      for (int i = 0; i < 4; ++i) {
        graph.replay();
        round.check(got);
        round.write_expert_output_again();
        round.poison_out();
        graph.replay();
        round.check(out);
        pairs += 2;
        GpuLowLatencyRound(group, c, {.defer_receive = defer}).run();
        GpuLowLatencyRound(group, c, {.defer_receive = !defer}).run();
        pairs += 2;
      }
      group.group.synchronize();
      expect_rows(group, Rows(c, group.me), pairs, "replays and calls");
      expect_operations(group, 2, pairs);
      sync(group.world.team());
    });
}

TEST(EpGpuObserveTimes, LaunchesLieInTheCallsThatQueuedThem) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = wide_case(2, 13);
  Settings settings = gpu_settings();
  settings.metrics = "all";
  run_threads(c.ranks, settings, [&](World& world) {
    GpuGroup group(world, options_for(c));
    group.group.warmup();
    GpuRound normal(group, c, {});
    normal.run();
    GpuLowLatencyRound(group, c, {}).run();
    group.group.synchronize();
    const std::int64_t after = observe::read_process()[0].read_ns;
    const GroupRecord seen = group_of(world, group.me);
    ASSERT_FALSE(seen.launches.empty());
    constexpr std::int64_t kClocks = 200'000;  // by which the two clocks may differ
    for (const auto& launch : seen.launches) {
      const auto call = std::ranges::find_if(seen.operations, [&](const auto& op) {
        return op.operation == launch.operation && op.epoch == launch.epoch;
      });
      ASSERT_NE(call, seen.operations.end()) << launch.operation << ' ' << launch.epoch;
      EXPECT_GE(launch.phases[0].start_ns, call->start_ns - kClocks) << launch.operation;
      EXPECT_LE(launch.end_ns, after + kClocks) << launch.operation;
      std::int64_t last = launch.phases[0].start_ns;
      for (const auto& phase : launch.phases) {
        EXPECT_GE(phase.start_ns, last) << launch.operation << ' ' << phase.name;
        last = phase.start_ns;
      }
      EXPECT_GE(launch.end_ns, last);
    }
    sync(world.team());
  });
}

TEST(EpGpuObserveWaits, ARankThatKernelsWaitForIsNamed) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(2, 15);
  run_normal(c, gpu_settings(), [&](GpuGroup& group) {
    GpuRound round(group, c, {.dispatch = {.worst_case_rows = c.ranks * c.max_tokens}});
    const ep::Routing routing = round.route();
    group.group.synchronize();
    sync(group.world.team());
    if (group.me == 1) {
      // Calls only once the record shows that the kernel of rank 0 waits for it.
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      bool named = false;
      while (!named && std::chrono::steady_clock::now() < deadline) {
        for (const auto& op : group_of(group.world, 0).operations)
          named = named || (op.waiting && op.awaited == 1 && op.operation == "dispatch" &&
                            op.phases.back().name == "notify");
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      EXPECT_TRUE(named);
      std::vector<observe::PeRecord> mine;
      for (const auto& pe : observe::read_process())
        if (pe.n_pes == 2) mine.push_back(pe);
      EXPECT_NE(observe::who_waits(mine).find("rank 1 (PE 1) is behind: rank 0 waits for it"),
                std::string::npos)
          << observe::who_waits(mine);
    }
    const ep::Dispatched got = round.dispatch(routing);
    group.group.synchronize();
    const GroupRecord seen = group_of(group.world, group.me);
    if (group.me == 0) EXPECT_GT(seen.peers[1].wait_ns, 1'000'000);
    EXPECT_EQ(seen.peers[static_cast<std::size_t>(group.me)].wait_ns, 0);
    EXPECT_FALSE(std::ranges::any_of(seen.operations, [](const auto& op) { return op.waiting; }));
  });
}

TEST(EpGpuObserveSettings, KernelsCountNothingWhereTheHostAloneCounts) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(2, 17);
  Settings settings = gpu_settings();
  for (const char* const metrics : {"host", "off"}) {
    settings.metrics = metrics;
    run_normal(c, settings, [&](GpuGroup& group) {
      GpuRound(group, c, {}).run();
      group.group.synchronize();
      const GroupRecord seen = group_of(group.world, group.me);
      EXPECT_EQ(seen.totals[0].operations, settings.metrics == "host" ? 1U : 0U);
      EXPECT_EQ(seen.totals[0].rows, 0U);
      EXPECT_TRUE(seen.launches.empty());
      EXPECT_EQ(group.group.statistics().rows_sent, 0U);
    });
  }
}

}  // namespace
}  // namespace shoal::test
