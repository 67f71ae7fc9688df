// SPDX-License-Identifier: Apache-2.0
// Counters of a group's kernels: rows, load of experts, waits and times, in the record of the
// process and in Group::statistics; also where graphs are replayed between calls. Inside a node,
// and between emulated nodes, by the proxy and by queues of an emulated NIC.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <numeric>
#include <ostream>
#include <thread>

#include "checks/ep/gpu_low_latency.hpp"
#include "shoal/collective.hpp"
#include "shoal/memory_map.hpp"
#include "shoal/observe.hpp"
#include "support/cuda/graph.hpp"
#include "support/expect_error.hpp"
#include "support/world/verbs.hpp"

namespace shoal::test {
namespace {

using observe::GroupRecord;

/// Before CUDA starts: kernels must not be loaded while one waits for the proxy.
const int kEager = [] {
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  return setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
}();

/// Ranks, and how their rows travel.
struct Way {
  std::int32_t ranks, nodes = 1;
  bool by_nic = false;

  EpCase on_nodes(EpCase c) const {
    c.nodes = nodes;
    return c;
  }
  EpCase small(std::uint64_t seed) const { return on_nodes(small_case(ranks, seed)); }
  EpCase wide(std::uint64_t seed) const { return on_nodes(wide_case(ranks, seed)); }

  Settings settings(const char* metrics = "on") const {
    Settings settings = nodes == 1 ? gpu_settings() : gpu_settings(1024);
    settings.metrics = metrics;
    if (nodes == 1) return settings;
    settings.node_size = ranks / nodes;
    settings.staging_size = std::size_t{1} << 28;
    settings.ep_between_nodes = "kernels";
    if (!by_nic) return settings;
    settings.cuda_handle = "pinned";
    settings.device = 0;  // PEs of a node reach pinned heaps on one GPU alone
    add_kernel_queues(settings);
    return settings;
  }
};
void PrintTo(const Way& way, std::ostream* out) {
  *out << way.ranks << "on" << way.nodes << (way.by_nic ? "ByNic" : "");
}

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
        by_rail(to.size()),
        by_network(to.size()),
        of_expert(static_cast<std::size_t>(c.local_experts())) {
    const std::int32_t node_size = c.ranks / c.nodes;
    for (std::int32_t source = 0; source < c.ranks; ++source) {
      const std::vector<std::int64_t> topk = c.topk(source);
      for (std::int64_t token = 0; token < c.tokens(source); ++token) {
        std::vector<bool> sent(static_cast<std::size_t>(c.nodes));
        for (const std::int32_t rank : ranks_of(c, topk.data() + token * c.top_k)) {
          if (rank == me) ++received;
          if (source != me) continue;
          ++to[static_cast<std::size_t>(rank)];
          const auto node = static_cast<std::size_t>(c.node_of(rank));
          if (c.node_of(rank) == c.node_of(me)) continue;
          ++by_network[static_cast<std::size_t>(rank)];
          if (!sent[node]) ++by_rail[node * node_size + me % node_size];
          sent[node] = true;
        }
      }
    }
    const ExpectedDispatch wanted = expected_dispatch(c, me);
    for (std::size_t e = 0; e < of_expert.size(); ++e)
      of_expert[e] = static_cast<std::uint64_t>(wanted.tokens_per_expert[e]);
  }
  std::uint64_t sent() const { return std::accumulate(to.begin(), to.end(), std::uint64_t{0}); }

  std::vector<std::uint64_t> to;  ///< [ranks] copies of this rank's tokens
  /// [ranks] rows that cross a network in normal mode, and in low-latency mode
  std::vector<std::uint64_t> by_rail, by_network;
  std::uint64_t received = 0;  ///< copies
  std::vector<std::uint64_t> of_expert;
};

/// `row_bytes`: of all rows together, if each was sent once.
void expect_network_rows(GpuGroup& group, const std::vector<std::uint64_t>& rows,
                         std::uint64_t times, std::uint64_t row_bytes) {
  const GroupRecord seen = group_of(group.world, group.me);
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    EXPECT_EQ(seen.peers[rank].network_rows, times * rows[rank]) << "to rank " << rank;
    EXPECT_EQ(seen.peers[rank].network_bytes, rows[rank] * row_bytes) << "to rank " << rank;
  }
}

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

class EpGpuObserve : public WithVerbs, public testing::WithParamInterface<Way> {
 protected:
  void SetUp() override {
    ASSERT_EQ(kEager, 0);
    if (GetParam().by_nic) WithVerbs::SetUp();
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, EpGpuObserve,
                         ::testing::Values(Way{1}, Way{2}, Way{4}, Way{2, 2}, Way{4, 2},
                                           Way{2, 2, true}, Way{4, 2, true}),
                         testing::PrintToStringParamName());

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
void run_low_latency(const EpCase& c, const Way& way, const std::function<void(GpuGroup&)>& body) {
  run_threads(c.ranks, way.settings("all"), [&](World& world) {
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
  const EpCase c = GetParam().small(3);
  run_normal(c, GetParam().settings(), [&](GpuGroup& group) {
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
    const std::uint64_t row_bytes = static_cast<std::uint64_t>(c.hidden) * 2;
    EXPECT_EQ(seen.totals[0].bytes, 2 * rows.sent() * row_bytes);
    expect_network_rows(group, rows.by_rail, 2, 2 * row_bytes);
    EXPECT_EQ(seen.totals[1].rows, 2 * rows.sent()) << "a combine fetches what was sent";
  });
}

TEST_P(EpGpuObserve, ExpertMajorCountsARowForEachExpert) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = GetParam().small(5);
  run_normal(c, GetParam().settings(), [&](GpuGroup& group) {
    GpuCall call{.place = OutputPlace::in_place};
    GpuRound round(group, c, call);
    const ep::ExpertMajorDispatched got = group.group.dispatch_expert_major(
        round.x(), round.route(), {.alignment = 4, .launch = round.dispatch_options().launch});
    group.group.synchronize();
    std::uint64_t sent = 0, received = 0;
    for (const std::int64_t expert : c.topk(group.me)) sent += expert >= 0 ? 1 : 0;
    for (const std::int64_t rows : *got.rows_per_source)
      received += static_cast<std::uint64_t>(rows);
    EXPECT_EQ(group.group.statistics().rows_sent, sent);
    EXPECT_EQ(group.group.statistics().rows_received, received);
    const GroupRecord seen = group_of(group.world, group.me);
    const ExpectedDispatch wanted = expected_dispatch(c, group.me);
    for (std::size_t expert = 0; expert < seen.expert_rows.size(); ++expert)
      EXPECT_EQ(seen.expert_rows[expert],
                static_cast<std::uint64_t>(wanted.tokens_per_expert[expert]));
    expect_network_rows(group, Rows(c, group.me).by_rail, 1,
                        static_cast<std::uint64_t>(c.hidden) * 2);
  });
}

TEST_P(EpGpuObserve, LowLatencyModeCountsRows) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = GetParam().wide(7);
  for (const bool defer : kDeferrals)
    run_low_latency(c, GetParam(), [&](GpuGroup& group) {
      const Rows rows(c, group.me);
      for (const ep::Quantize quantize : {ep::Quantize::none, ep::Quantize::fp8})
        GpuLowLatencyRound(group, c, {.quantize = quantize, .defer_receive = defer}).run();
      group.group.synchronize();
      expect_rows(group, rows, 2, defer ? "deferred" : "immediate");
      expect_operations(group, 2, 2);
      const GroupRecord seen = group_of(group.world, group.me);
      EXPECT_EQ(seen.totals[2].bytes, rows.sent() * static_cast<std::uint64_t>(c.hidden) * 3);
      EXPECT_EQ(seen.totals[3].rows, 2 * rows.sent());
      expect_network_rows(group, rows.by_network, 2, static_cast<std::uint64_t>(c.hidden) * 3);
      sync(group.world.team());
    });
}

TEST_P(EpGpuObserve, ReplaysAndCallsOfNormalModeMix) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = GetParam().small(9);
  c.holes = 0;
  run_normal(c, GetParam().settings(), [&](GpuGroup& group) {
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
    sync(group.world.team());  // the driver loads a graph only while no PE of the GPU waits
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
  const EpCase c = GetParam().wide(11);
  for (const bool defer : kDeferrals)
    run_low_latency(c, GetParam(), [&](GpuGroup& group) {
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
      sync(group.world.team());
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

TEST_P(EpGpuObserve, LaunchesLieInTheCallsThatQueuedThem) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = GetParam().wide(13);
  run_threads(c.ranks, GetParam().settings("all"), [&](World& world) {
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
      if (!launch.operation.starts_with("low_latency"))
        EXPECT_EQ(call->state, "completed") << launch.operation;
      if (launch.operation == "dispatch")
        EXPECT_EQ(launch.phases[1].name, c.nodes > 1 ? "rail" : "send");
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

TEST_P(EpGpuObserve, TheRingHasTheRowsAndTimesOfKernels) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = GetParam().wide(21);
  run_threads(c.ranks, GetParam().settings(), [&](World& world) {
    GpuGroup group(world, options_for(c));
    group.group.warmup();
    GpuRound(group, c, {}).run();
    for (int i = 0; i < 2; ++i) GpuLowLatencyRound(group, c, {}).run();
    group.group.synchronize();
    const std::uint64_t rows = Rows(c, group.me).sent();
    const GroupRecord seen = group_of(world, group.me);
    ASSERT_GE(seen.operations.size(), 6U);
    // Earlier operations are of the warm-up; the last two are completed when a later one has ended.
    for (std::size_t i = seen.operations.size() - 6; i < seen.operations.size() - 2; ++i) {
      const auto& op = seen.operations[i];
      SCOPED_TRACE(op.operation);
      EXPECT_EQ(op.state, "completed");
      ASSERT_FALSE(op.phases.empty());
      EXPECT_EQ(op.phases[0].name, "queued");
      EXPECT_GE(op.end_ns, op.start_ns);
      if (!op.operation.starts_with("low_latency")) {
        EXPECT_EQ(op.rows, rows);
        EXPECT_EQ(op.bytes, rows * static_cast<std::uint64_t>(c.hidden) * 2);
        EXPECT_EQ(op.phases.size(), 4U) << "queued, and three of its kernel";
        continue;
      }
      // Kernels of this mode do not count here: the most that the call moves.
      EXPECT_EQ(op.rows, static_cast<std::uint64_t>(c.tokens(group.me) * c.top_k));
      EXPECT_TRUE(std::ranges::none_of(
          op.phases, [](const auto& p) { return p.name == "send" || p.name == "receive"; }));
    }
    sync(world.team());
  });
}

/// The kernels of a dispatch run on all ranks before they end on any, on the clocks of all GPUs.
TEST_P(EpGpuObserve, LaunchesOfAllRanksAreOnOneClock) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = GetParam().small(23);
  run_normal(c, GetParam().settings(), [&](GpuGroup& group) {
    for (int i = 0; i < 3; ++i) GpuRound(group, c, {}).run();
    group.group.synchronize();
    sync(group.world.team());
    constexpr std::int64_t kClocks = 200'000;  // by which two clocks may differ
    std::map<std::uint64_t, std::vector<std::pair<std::int64_t, std::int64_t>>> by_epoch;
    for (Pe pe = 0; pe < group.world.n_pes(); ++pe)
      for (const auto& launch : group_of(group.world, pe).launches)
        by_epoch[launch.epoch].emplace_back(launch.phases[0].start_ns, launch.end_ns);
    EXPECT_GE(by_epoch.size(), 6U);
    std::size_t matched = 0;
    for (const auto& [epoch, spans] : by_epoch) {
      if (spans.size() < static_cast<std::size_t>(c.ranks)) continue;
      ++matched;
      const std::int64_t last_start =
          std::ranges::max(spans, {}, [](auto& s) { return s.first; }).first;
      const std::int64_t first_end =
          std::ranges::min(spans, {}, [](auto& s) { return s.second; }).second;
      EXPECT_LE(last_start, first_end + kClocks) << "epoch " << epoch;
    }
    EXPECT_GE(matched, 6U) << "three rounds of two operations";
    sync(group.world.team());
  });
}

TEST_P(EpGpuObserve, AddressesOfALiveGroupAreLocated) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = GetParam().small(25);
  run_normal(c, GetParam().settings(), [&](GpuGroup& group) {
    GpuRound round(group, c, {});
    const ep::Dispatched got = round.dispatch(round.route());
    group.group.synchronize();
    const auto address = reinterpret_cast<std::uint64_t>(got.x.data) + 5;
    const auto places = observe::locate_address(observe::read_process_memory(), address);
    const std::string me = std::to_string(group.me);
    EXPECT_TRUE(std::ranges::any_of(places, [&](const std::string& place) {
      return place.find("in group 1 of rank " + me) != std::string::npos &&
             place.find("as PE " + me + " (pid") != std::string::npos;
    })) << ::testing::PrintToString(places);
    sync(group.world.team());
  });
}

TEST(EpGpuObserveFailures, AGroupThatFailsWritesItsRecord) {
  SHOAL_SKIP_WITHOUT_GPU();
  char folder[] = "/tmp/shoal-flight-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const EpCase c = small_case(2, 27);
  Settings settings = Way{2}.settings();
  settings.flight_dir = folder;
  run_threads(2, settings, [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.timeout = std::chrono::milliseconds(500);
    GpuGroup group(world, options);
    GpuRound round(group, c, {.dispatch = {.worst_case_rows = c.ranks * c.max_tokens}});
    round.run();
    const ep::Routing routing = round.route();
    group.group.synchronize();
    sync(world.team());
    if (group.me == 0) {
      EXPECT_THROW(
          {
            round.dispatch(routing);
            group.group.synchronize();
          },
          Error);
      const auto records = observe::read_files(folder);
      ASSERT_EQ(records.size(), 1U);
      ASSERT_EQ(records[0].groups.size(), 1U);
      expect_parts(records[0].groups[0].failure, {"dispatch", "PE 1"});
      EXPECT_EQ(records[0].groups[0].operations[0].state, "completed");
    }
    sync(world.team());
  });
  std::filesystem::remove_all(folder);
}

/// Waits until the record shows that the kernel of rank 0 waits for rank 1.
void expect_named(const World& world, const char* operation, const char* phase) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  bool named = false;
  while (!named && std::chrono::steady_clock::now() < deadline) {
    for (const auto& op : group_of(world, 0).operations)
      named = named || (op.waiting && op.awaited == 1 && op.operation == operation &&
                        op.phases.back().name == phase);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_TRUE(named);
  std::vector<observe::PeRecord> mine;
  for (const auto& pe : observe::read_process())
    if (pe.n_pes == 2) mine.push_back(pe);
  expect_parts(observe::who_waits(mine), {"rank 1 (PE 1) is behind: rank 0 waits for it"});
}

/// The wait for rank 1 is over, and counts.
void expect_waited(GpuGroup& group) {
  const GroupRecord seen = group_of(group.world, group.me);
  if (group.me == 0) EXPECT_GT(seen.peers[1].wait_ns, 1'000'000);
  EXPECT_EQ(seen.peers[static_cast<std::size_t>(group.me)].wait_ns, 0);
  EXPECT_FALSE(std::ranges::any_of(seen.operations, [](const auto& op) { return op.waiting; }));
}

class EpGpuObserveWaits : public EpGpuObserve {};
INSTANTIATE_TEST_SUITE_P(Ways, EpGpuObserveWaits,
                         ::testing::Values(Way{2}, Way{2, 2}, Way{2, 2, true}),
                         testing::PrintToStringParamName());

TEST_P(EpGpuObserveWaits, ARankThatKernelsWaitForIsNamed) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = GetParam().small(15);
  run_normal(c, GetParam().settings(), [&](GpuGroup& group) {
    GpuRound round(group, c, {.dispatch = {.worst_case_rows = c.ranks * c.max_tokens}});
    const ep::Routing routing = round.route();
    group.group.synchronize();
    sync(group.world.team());
    if (group.me == 1) expect_named(group.world, "dispatch", "notify");
    const ep::Dispatched got = round.dispatch(routing);
    group.group.synchronize();
    expect_waited(group);
  });
}

TEST_P(EpGpuObserveWaits, ARankThatLowLatencyKernelsWaitForIsNamed) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = GetParam().wide(19);
  run_low_latency(c, GetParam(), [&](GpuGroup& group) {
    GpuLowLatencyRound round(group, c, {});
    group.group.synchronize();
    sync(group.world.team());
    if (group.me == 1) expect_named(group.world, "low_latency_dispatch", "receive");
    (void)round.send().receive();
    group.group.synchronize();
    expect_waited(group);
    sync(group.world.team());
  });
}

TEST(EpGpuObserveSettings, KernelsCountNothingWhereTheHostAloneCounts) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(2, 17);
  for (const char* const metrics : {"host", "off"}) {
    const Settings settings = Way{2}.settings(metrics);
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
