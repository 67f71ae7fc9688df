// SPDX-License-Identifier: Apache-2.0
// Counters of normal mode's kernels between nodes, on fake GPUs, against the host backend on the
// same nodes and the same routing.
// @traits fake_gpu
#include "fake_gpu/fake_gpu.hpp"
#include "shoal/detail/ep_layouts.hpp"
//
#include <gtest/gtest.h>

#include <numeric>

#include "shoal/collective.hpp"
#include "shoal/observe.hpp"
#include "shoal/settings.hpp"
#include "shoal/world.hpp"
#include "unit/ep/internode_ranks.hpp"

namespace shoal::ep::cuda {
namespace {

namespace record = shoal::detail::record;

constexpr std::uint64_t kRounds = 3;  ///< dispatches and combines of Ranks::run

struct HostCounts {
  observe::GroupRecord record;
  Statistics statistics;
};

/// Dispatches and combines as Ranks::run.
std::vector<HostCounts> host_counts(const Case& c, Ranks& ranks) {
  std::vector<HostCounts> all(static_cast<std::size_t>(c.ranks()));
  Settings settings;
  settings.node_size = c.size;
  run_threads(c.ranks(), settings, [&](World& world) {
    GroupOptions options;
    options.experts = c.experts();
    options.first_expert = c.first_expert;
    options.top_k = c.top_k;
    options.hidden = c.hidden;
    options.max_tokens = c.max_tokens;
    Group group(world.team(), options);
    const auto me = static_cast<std::size_t>(world.my_pe());
    Rank& rank = ranks.rank(world.my_pe());
    const std::int64_t tokens = rank.routing->tokens;
    const Tensor x = Tensor::empty(DataType::bfloat16, {tokens, c.hidden});
    std::memset(x.data, 0, x.bytes());
    const Routing routing =
        group.route(TensorView(rank.topk_idx.data(), DataType::int64, {tokens, c.top_k}));
    detail::AnyDispatchOptions dispatch;
    dispatch.expert_major = c.alignment > 0;
    if (c.alignment > 0) dispatch.expert_alignment = c.alignment;
    const auto combine = [&](const detail::AnyDispatched& received) {
      (void)group.combine(received.x, received.handle, {});
    };
    Handle handle;
    {
      const detail::AnyDispatched received = detail::dispatch(group, x, routing, dispatch);
      handle = received.handle;
      combine(received);
    }
    combine(detail::dispatch(group, x, handle, {}));
    combine(detail::dispatch(group, x, routing, dispatch));
    all[me].statistics = group.statistics();
    for (const auto& pe : observe::read_process())
      if (pe.pe == world.my_pe()) all[me].record = pe.groups.at(0);
    sync(world.team());
  });
  return all;
}

void expect_launches(const std::vector<record::KernelCounts::Launch>& launches) {
  ASSERT_EQ(launches.size(), 2 * kRounds);
  for (const auto& launch : launches) {
    const bool dispatch = launch.operation == record::Operation::dispatch;
    ASSERT_EQ(launch.phases.size(), 3U);
    EXPECT_EQ(launch.phases[0].first, record::Phase::notify);
    EXPECT_EQ(launch.phases[1].first, record::Phase::rail);
    EXPECT_EQ(launch.phases[2].first, dispatch ? record::Phase::receive : record::Phase::finish);
    EXPECT_GT(launch.phases[0].second, 0U);
    EXPECT_LE(launch.phases[0].second, launch.phases[1].second);
    EXPECT_LE(launch.phases[1].second, launch.phases[2].second);
    EXPECT_LE(launch.phases[2].second, launch.end);
  }
}

void expect_counts(Ranks& ranks, std::int32_t me, const HostCounts& wanted) {
  SCOPED_TRACE("rank " + std::to_string(me));
  Statistics statistics;
  const auto counts = ranks.counts(me, statistics);
  EXPECT_EQ(statistics.rows_sent, wanted.statistics.rows_sent);
  EXPECT_EQ(statistics.rows_received, wanted.statistics.rows_received);
  for (std::size_t op = 0; op < 2; ++op) {
    EXPECT_EQ(counts.totals[op].operations, kRounds);
    EXPECT_EQ(counts.totals[op].rows, wanted.record.totals[op].rows);
    EXPECT_EQ(counts.totals[op].bytes, wanted.record.totals[op].bytes);
  }
  ASSERT_EQ(counts.peers.size(), wanted.record.peers.size());
  for (std::size_t peer = 0; peer < counts.peers.size(); ++peer) {
    SCOPED_TRACE("peer " + std::to_string(peer));
    EXPECT_EQ(counts.peers[peer].rows, wanted.record.peers[peer].rows);
    EXPECT_EQ(counts.peers[peer].bytes, wanted.record.peers[peer].bytes);
    EXPECT_EQ(counts.peers[peer].network_rows, wanted.record.peers[peer].network_rows);
    EXPECT_EQ(counts.peers[peer].network_bytes, wanted.record.peers[peer].network_bytes);
  }
  EXPECT_EQ(counts.peers[static_cast<std::size_t>(me)].waits, 0U);
  EXPECT_EQ(counts.expert_rows, wanted.record.expert_rows);
  expect_launches(counts.launches);
  for (const auto& durations : counts.durations)
    EXPECT_EQ(std::accumulate(durations.buckets.begin(), durations.buckets.end(), 0ULL),
              durations.operation <= record::Operation::combine ? kRounds : 0)
        << static_cast<int>(durations.phase);
}

void compare(const Case& c) {
  SCOPED_TRACE(c.describe());
  Ranks ranks(c);
  ranks.run();
  const std::vector<HostCounts> host = host_counts(c, ranks);
  std::uint64_t rows = 0, network_rows = 0;
  for (std::int32_t me = 0; me < c.ranks(); ++me) {
    expect_counts(ranks, me, host[static_cast<std::size_t>(me)]);
    for (const auto& peer : host[static_cast<std::size_t>(me)].record.peers) {
      rows += peer.rows;
      network_rows += peer.network_rows;
    }
    // A row for each token and remote node, to the rail peer.
    for (std::int32_t node = 0; node < c.nodes; ++node)
      if (node != me / c.size)
        EXPECT_EQ(host[static_cast<std::size_t>(me)]
                      .record.peers[static_cast<std::size_t>(node * c.size + me % c.size)]
                      .network_rows,
                  kRounds * static_cast<std::uint64_t>(ranks.rank(me).node_counts[node]));
  }
  EXPECT_GT(network_rows, 0U);
  EXPECT_LT(network_rows, rows);
}

TEST(EpInternodeCounts, RankMajorCountsAsTheHostBackendDoes) {
  compare({.nodes = 2, .size = 2, .hidden = 64, .seed = 1});
  compare({.nodes = 3, .size = 1, .hidden = 64, .empty = true, .seed = 2});
}

TEST(EpInternodeCounts, ExpertMajorCountsAsTheHostBackendDoes) {
  compare({.nodes = 2, .size = 2, .hidden = 64, .alignment = 4, .seed = 3});
}

// The expert output is staged by a kernel of its own, with which the combine begins.
TEST(EpInternodeCounts, CombinesBeginWithTheirStaging) {
  const Case c{.nodes = 2, .size = 1, .hidden = 64, .summed = true, .seed = 4};
  Ranks ranks(c);
  ranks.run();
  const auto& record = *reinterpret_cast<const KernelRecord*>(ranks.rank(0).record.data());
  std::uint64_t combines = 0;
  for (const LaunchRecord& launch : record.launches[0]) {
    if (launch.epoch == 0) continue;
    const bool combine = launch.operation == static_cast<std::uint64_t>(RecordedOperation::combine);
    if (combine) {
      EXPECT_LT(launch.begin(), launch.start);
      ++combines;
    } else {
      EXPECT_EQ(launch.begin(), launch.start);
    }
  }
  EXPECT_EQ(combines, kRounds);
}

// Chunks that come late: the wait is that of their rank in the phase rail, and is over when they
// have arrived.
TEST(EpInternodeCounts, WaitsForChunksAreThoseOfTheRailPeer) {
  const Case c{.nodes = 2, .size = 2, .hidden = 64, .chunk = 1 << 14, .blocks = 1, .seed = 5};
  Ranks ranks(c);
  ranks.start_network();
  ranks.network().chunk_delay_ms = 200;
  ranks.each([&](std::int32_t me) { ranks.dispatch(me, false); });
  ranks.stop_network();
  for (std::int32_t me = 0; me < c.ranks(); ++me) {
    Statistics statistics;
    const auto counts = ranks.counts(me, statistics);
    const auto& peer = counts.peers[static_cast<std::size_t>((me + 2) % 4)];
    EXPECT_GT(peer.waits, 0U);
    EXPECT_GT(peer.wait, 10'000'000U);
    EXPECT_GE(statistics.wait_time, std::chrono::nanoseconds(peer.wait));
    EXPECT_NE(ranks.counts(me, statistics, false).wait.phase, record::Phase::rail);
  }
}

// A rank that receives nothing: its rail peer waits for its chunks.
TEST(EpInternodeCounts, ShowARankWhoseChunksDoNotCome) {
  const Case c{.nodes = 2, .size = 1, .hidden = 64, .seed = 6};
  Ranks ranks(c);
  ranks.lose(1);
  Statistics statistics;
  const auto wait = ranks.counts(0, statistics, false).wait;
  EXPECT_EQ(wait.rank, 1);
  EXPECT_EQ(wait.operation, record::Operation::dispatch);
  EXPECT_EQ(wait.phase, record::Phase::rail);
  EXPECT_EQ(wait.epoch, 2U);
}

}  // namespace
}  // namespace shoal::ep::cuda
