// SPDX-License-Identifier: Apache-2.0
// Compares what the kernels of low-latency mode count, on a fake GPU, with the host backend.
// @traits fake_gpu
#include "fake_gpu/fake_gpu.hpp"
//
#include <gtest/gtest.h>

#include "shoal/collective.hpp"
#include "shoal/observe.hpp"
#include "shoal/settings.hpp"
#include "shoal/world.hpp"
#include "unit/ep/low_latency_ranks.hpp"

namespace shoal::ep::cuda {
namespace {

class EpLowLatencyCounts : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Masks, EpLowLatencyCounts, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "masks" : "none"; });

/// The record and the statistics of each rank of the host backend after these operations.
struct HostCounts {
  observe::GroupRecord record;
  Statistics statistics;
};
/// `topk`: [round][rank], `quantize`: [round].
std::vector<HostCounts> host_counts(const Case& c,
                                    const std::vector<std::vector<std::vector<std::int64_t>>>& topk,
                                    const std::vector<Quantize>& quantize) {
  std::vector<HostCounts> all(static_cast<std::size_t>(c.ranks));
  Settings settings;
  settings.node_size = c.node_size;
  run_threads(c.ranks, settings, [&](World& world) {
    GroupOptions options;
    options.experts = c.experts;
    options.first_expert = c.first_expert;
    options.top_k = c.top_k;
    options.hidden = c.hidden;
    options.low_latency_max_tokens = *std::ranges::max_element(c.tokens);
    options.mask_failed = c.masks;
    Group group(world.team(), options);
    const auto me = static_cast<std::size_t>(world.my_pe());
    const std::int64_t tokens = c.tokens[me];
    const Tensor x = Tensor::empty(DataType::bfloat16, {tokens, c.hidden});
    const Tensor weights = Tensor::empty(DataType::float32, {tokens, c.top_k});
    std::memset(x.data, 0, x.bytes());
    std::memset(weights.data, 0, weights.bytes());
    for (std::size_t round = 0; round < topk.size(); ++round) {
      std::vector<std::int64_t> experts = topk[round][me];
      const TensorView topk_idx(experts.data(), DataType::int64, {tokens, c.top_k});
      const LowLatencyReceived received =
          group.low_latency_dispatch(x, topk_idx, {.quantize = quantize[round]}).receive();
      const Tensor y = Tensor::empty(DataType::bfloat16,
                                     {group.max_local_experts(), received.x.shape[1], c.hidden});
      std::memset(y.data, 0, y.bytes());
      group.low_latency_combine(y, topk_idx, weights, received.handle).receive();
    }
    all[me].statistics = group.statistics();
    for (const auto& pe : observe::read_process())
      if (pe.pe == world.my_pe()) all[me].record = pe.groups.at(0);
    sync(world.team());
  });
  return all;
}

/// The kernels count the same as the host backend on the same nodes and routing.
void compare_counts(const Case& c) {
  const std::vector<Quantize> quantize = {Quantize::none, Quantize::fp8, Quantize::none};
  std::vector<std::vector<std::vector<std::int64_t>>> topk;
  Ranks ranks(c);
  for (const Quantize how : quantize) {
    ranks.quantize(how);
    ranks.round(how == Quantize::none ? kSums : kRows, Values::plain);
    topk.emplace_back();
    for (std::int32_t rank = 0; rank < c.ranks; ++rank) topk.back().push_back(ranks.topk(rank));
  }
  const std::vector<HostCounts> host = host_counts(c, topk, quantize);
  std::uint64_t rows = 0;
  for (std::int32_t rank = 0; rank < c.ranks; ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    Statistics statistics;
    const auto counts = ranks.counts(rank, statistics);
    const HostCounts& wanted = host[static_cast<std::size_t>(rank)];
    EXPECT_EQ(statistics.rows_sent, wanted.statistics.rows_sent);
    EXPECT_EQ(statistics.rows_received, wanted.statistics.rows_received);
    for (std::size_t op = 0; op < counts.totals.size(); ++op) {
      SCOPED_TRACE(wanted.record.totals[op].operation);
      EXPECT_EQ(counts.totals[op].operations, wanted.record.totals[op].operations);
      EXPECT_EQ(counts.totals[op].rows, wanted.record.totals[op].rows);
      EXPECT_EQ(counts.totals[op].bytes, wanted.record.totals[op].bytes);
    }
    ASSERT_EQ(counts.peers.size(), wanted.record.peers.size());
    for (std::size_t peer = 0; peer < counts.peers.size(); ++peer) {
      EXPECT_EQ(counts.peers[peer].rows, wanted.record.peers[peer].rows);
      EXPECT_EQ(counts.peers[peer].bytes, wanted.record.peers[peer].bytes);
      EXPECT_EQ(counts.peers[peer].network_rows, wanted.record.peers[peer].network_rows);
      EXPECT_EQ(counts.peers[peer].network_bytes, wanted.record.peers[peer].network_bytes);
      if (!c.is_remote(rank, static_cast<std::int32_t>(peer)))
        EXPECT_EQ(counts.peers[peer].network_rows, 0U);
    }
    EXPECT_EQ(counts.expert_rows, wanted.record.expert_rows);
    rows += std::accumulate(counts.expert_rows.begin(), counts.expert_rows.end(), std::uint64_t{0});
    // Every phase that the host has, once an operation.
    for (const auto& histogram : wanted.record.histograms) {
      const auto found = std::ranges::find_if(counts.durations, [&](const auto& durations) {
        return shoal::detail::record::kOperationNames[static_cast<std::size_t>(
                   durations.operation)] == histogram.operation &&
               shoal::detail::record::kPhaseNames[static_cast<std::size_t>(durations.phase)] ==
                   histogram.phase;
      });
      ASSERT_NE(found, counts.durations.end()) << histogram.phase;
      EXPECT_EQ(std::accumulate(found->buckets.begin(), found->buckets.end(), std::uint64_t{0}),
                histogram.count)
          << histogram.phase;
    }
    EXPECT_EQ(counts.launches.size(), 4 * quantize.size());
    EXPECT_EQ(counts.wait.rank, -1);
  }
  EXPECT_GT(rows, 0U);
}

TEST_P(EpLowLatencyCounts, CountAsTheHostBackendDoes) {
  compare_counts({.tokens = {4, 2, 0}, .masks = GetParam()});
}

TEST_P(EpLowLatencyCounts, CountAsTheHostBackendDoesWithUnevenExperts) {
  compare_counts({.experts = 10, .tokens = {3, 0, 2}, .masks = GetParam()});
  compare_counts(
      {.experts = 7, .tokens = {3, 1, 2}, .masks = GetParam(), .first_expert = {0, 2, 2}});
}

TEST_P(EpLowLatencyCounts, CountAsTheHostBackendDoesInternode) {
  compare_counts(
      {.ranks = 4, .experts = 12, .tokens = {4, 2, 0, 3}, .masks = GetParam(), .node_size = 2});
}

// The launches of one node's kernels include the kernels before and after them: a receive begins
// when it begins to wait for other nodes, a send ends when it has been forwarded.
TEST(EpLowLatencyCountsOf, LaunchesAreWholeInternodeToo) {
  for (const bool internode : {false, true}) {
    Ranks ranks({.tokens = {4, 2, 3}, .node_size = internode ? 1 : 0});
    ranks.round(internode ? kNow : kSums, Values::plain);
    for (std::int32_t rank = 0; rank < 3; ++rank)
      for (const KernelKind kind :
           {KernelKind::low_latency_dispatch_send, KernelKind::low_latency_dispatch_receive,
            KernelKind::low_latency_combine_send, KernelKind::low_latency_combine_receive}) {
        SCOPED_TRACE("kind " + std::to_string(static_cast<int>(kind)));
        const LaunchRecord& launch = ranks.launch(rank, kind, 1);
        const bool waits_first = kind != KernelKind::low_latency_dispatch_send;
        EXPECT_EQ(launch.begin() < launch.start, internode && waits_first);
        const bool sends = kind == KernelKind::low_latency_dispatch_send ||
                           kind == KernelKind::low_latency_combine_send;
        // The block that forwards is the only one of its launch.
        if (sends) EXPECT_EQ(launch.ends[0] == launch.end(), internode);
        if (sends) EXPECT_EQ(launch.forwarded == launch.epoch, internode);
      }
  }
}

// Between nodes, a send that has ended is complete once it has been forwarded: its duration would
// change otherwise after it was shown.
TEST(EpLowLatencyCountsOf, ASendCountsOnceItIsForwarded) {
  constexpr auto kSend = static_cast<std::uint32_t>(KernelKind::low_latency_dispatch_send);
  detail::Shape shape = shape_of({});
  Epochs done{};
  done.of_kind[kSend] = 1;
  for (const bool remote : {false, true})
    for (const std::uint64_t forwarded : {0, 1}) {
      Array<std::byte> memory(kernel_record_bytes(shape.local_experts));
      auto& record = *reinterpret_cast<KernelRecord*>(memory.data());
      LaunchRecord& launch = record.launches[kSend][1];
      launch.epoch = 1;
      launch.operation = static_cast<std::uint64_t>(RecordedOperation::low_latency_dispatch);
      launch.start = 100;
      launch.ends[1] = 300;
      launch.forwarded = forwarded;
      NodeBorders borders;
      if (remote) borders.remote_ranks = {1};
      add_last_launches(record, done, borders);
      const auto counts = counts_of(record, done, shape, borders, 0, 0);
      EXPECT_EQ(counts.launches.size(), remote && forwarded == 0 ? 0U : 1U);
      EXPECT_EQ(record.durations[2][0].sum, remote && forwarded == 0 ? 0U : 200U);
    }
}

// A launch is added to the durations once, by the next one or by the host.
TEST(EpLowLatencyCountsOf, LaunchesAreAddedOnce) {
  Ranks ranks({.hidden = 128, .tokens = {1, 1, 1}});
  for (std::uint64_t rounds = 1; rounds <= kLaunches + 2; ++rounds) {
    ranks.round(kSums, Values::plain);
    Statistics statistics;
    const auto counts = ranks.counts(1, statistics);
    for (const auto& durations : counts.durations) {
      const bool low_latency =
          durations.operation >= shoal::detail::record::Operation::low_latency_dispatch;
      ASSERT_EQ(std::accumulate(durations.buckets.begin(), durations.buckets.end(), 0ULL),
                low_latency ? rounds : 0);
    }
    ASSERT_EQ(counts.totals[3].operations, rounds);
    ASSERT_EQ(counts.launches.size(), 4 * std::min<std::uint64_t>(rounds, kLaunches));
  }
}

// Without DeviceGroup::record, kernels run as with it and leave it alone.
TEST(EpLowLatencyCountsOf, CountNothingWithoutARecord) {
  Ranks ranks({});
  ranks.round(kSums, Values::plain);
  ranks.stop_counting();
  for (int i = 0; i < 2; ++i) ranks.round(kSums, Values::mixed);
  Statistics statistics;
  EXPECT_EQ(ranks.counts(0, statistics).totals[2].operations, 1U);
}

}  // namespace
}  // namespace shoal::ep::cuda
