// SPDX-License-Identifier: Apache-2.0
// Counters of the dispatch of normal mode, on a fake GPU, against the host backend on the same
// routing. Each rank runs on a thread with a GPU of its own.
// @traits fake_gpu
#include "fake_gpu/fake_gpu.hpp"
#include "shoal/detail/ep_layouts.hpp"
//
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "ep/cuda/device/faults.cuh"
#include "ep/cuda/group/kernel_counts.hpp"
#include "ep/cuda/normal/device/kernels.cuh"
#include "ep/plan/routing.hpp"
#include "fake_gpu/array.hpp"
#include "shoal/collective.hpp"
#include "shoal/observe.hpp"
#include "shoal/world.hpp"
#include "unit/ep/expert_shapes.hpp"

namespace shoal::ep::cuda {
namespace {

using test::fake_gpu::Array;

constexpr std::int32_t kRanks = 3, kLocalExperts = 3, kExperts = 6, kTopK = 3;
const std::vector<std::int32_t> kFirstExpert = {0, 3, 4};
constexpr std::int64_t kHidden = 64, kMaxTokens = 9;
constexpr std::int64_t kTokens[kRanks] = {9, 4, 0};
constexpr std::int64_t kRows = kRanks * kMaxTokens * kTopK + 64;

detail::Shape shape() {
  detail::Shape shape;
  shape.ranks = kRanks;
  test::spread_experts(shape, kExperts, kFirstExpert);
  shape.top_k = kTopK;
  shape.hidden = kHidden;
  shape.max_tokens = kMaxTokens;
  shape.live_results = 1;
  shape.max_row_bytes = shape.max_combine_row_bytes = kHidden * 2;
  return shape;
}

/// [tokens, top_k] of each rank: different experts, some none.
std::vector<std::vector<std::int64_t>> draw_topk() {
  std::mt19937 random(3);
  std::vector<std::vector<std::int64_t>> topk(kRanks);
  for (std::int32_t rank = 0; rank < kRanks; ++rank)
    for (std::int64_t token = 0; token < kTokens[rank]; ++token) {
      std::vector<std::int64_t> experts(kExperts);
      std::iota(experts.begin(), experts.end(), 0);
      std::ranges::shuffle(experts, random);
      for (std::int32_t k = 0; k < kTopK; ++k)
        topk[rank].push_back(random() % 5 == 0 ? -1 : experts[k]);
    }
  return topk;
}

struct Rank {
  explicit Rank(const std::vector<std::int64_t>& topk)
      : topk_idx(topk.size() + 1), copies(topk.size() + 1), row_indices(topk.size() + 1) {
    const auto tokens = static_cast<std::int64_t>(topk.size()) / kTopK;
    for (std::int64_t token = 0; token < tokens; ++token) {
      std::int32_t used = 0;
      for (std::int32_t k = 0; k < kTopK; ++k) {
        const std::int64_t at = token * kTopK + k, expert = topk[at];
        topk_idx[at] = expert;
        copies[at] = kNoCopy;
        if (expert < 0) continue;
        row_indices[at] = expert_counts[expert]++;
        bool last = true;  // the copy belongs to the last top-k slot of the rank
        for (std::int32_t later = k + 1; later < kTopK; ++later)
          last = last && (topk[token * kTopK + later] < 0 ||
                          shape().rank_of(topk[token * kTopK + later]) != shape().rank_of(expert));
        if (last) {
          const std::int32_t rank = shape().rank_of(expert);
          copies[token * kTopK + used++] = pack_copy(rank, rank_counts[rank]++);
        }
      }
      for (; used < kTopK; ++used) copies[token * kTopK + used] = kNoCopy;
    }
  }

  /// With room for kRows rows in the arena, however large it is.
  Array<std::byte> block{detail::DeviceLayout(shape()).total + kRows * 1024};
  Array<GroupMemory> memory{1};
  Array<FaultReport> report{1};
  Array<std::byte> record{kernel_record_bytes(kLocalExperts)};
  Array<std::byte> x{kMaxTokens * kHidden * 2};
  Array<std::int64_t> topk_idx;
  Array<std::int32_t> copies, row_indices, rank_counts{kRanks}, expert_counts{kExperts};
  Array<std::uint64_t> handle_epoch{1};
  Array<std::int32_t> handle{512};
  DeviceGroup group{};
};

class Ranks {
 public:
  explicit Ranks(const std::vector<std::vector<std::int64_t>>& topk) {
    for (const auto& of_rank : topk) ranks_.emplace_back(std::make_unique<Rank>(of_rank));
    for (std::int32_t me = 0; me < kRanks; ++me) {
      DeviceGroup& group = ranks_[me]->group;
      group.layout = layout_;
      for (std::int32_t other = 0; other < kRanks; ++other)
        group.block[other] = ranks_[other]->block.data();
      group.memory = ranks_[me]->memory.data();
      group.report = ranks_[me]->report.data();
      group.record = reinterpret_cast<KernelRecord*>(ranks_[me]->record.data());
      group.timeout_ns = 30'000'000'000;
      group.ranks = kRanks;
      group.me = me;
      set_experts(group, *shape().partition, me, expert_words_.data());
      group.top_k = kTopK;
    }
  }

  /// `alignment`: of an expert-major layout; 0: rank-major.
  void dispatch(std::int32_t alignment, bool cached) {
    std::vector<std::thread> threads;
    for (std::int32_t me = 0; me < kRanks; ++me)
      threads.emplace_back([&, me] {
        test::fake_gpu::run_concurrently();
        run(*ranks_[me], me, alignment, cached);
      });
    for (std::thread& thread : threads) thread.join();
    for (const auto& rank : ranks_) ASSERT_EQ(rank->report[0].fault, 0U);
  }

  shoal::detail::record::KernelCounts counts(std::int32_t me, Statistics& statistics) {
    Array<std::byte> copy(kernel_record_bytes(kLocalExperts));
    std::memcpy(copy.data(), ranks_[me]->record.data(), kernel_record_bytes(kLocalExperts));
    auto& record = *reinterpret_cast<KernelRecord*>(copy.data());
    Epochs done{};
    std::memcpy(&done, ranks_[me]->memory.data(), sizeof done);
    add_last_launches(record, done, {});
    add_counts(record, statistics);
    return counts_of(record, done, shape(), {}, me, 0);
  }

 private:
  void run(Rank& rank, std::int32_t me, std::int32_t alignment, bool cached) {
    NormalDispatch params{};
    params.group = rank.group;
    params.x = rank.x.data();
    params.row_bytes = kHidden * 2;
    params.tokens = static_cast<std::int32_t>(kTokens[me]);
    params.copies_per_token = kTopK;
    params.copies = rank.copies.data();
    params.write_indices = cached ? 0 : 1;
    params.routing = {rank.topk_idx.data(),      rank.copies.data(),      rank.rank_counts.data(),
                      rank.expert_counts.data(), rank.row_indices.data(), nullptr};
    std::int32_t* const handle = rank.handle.data();
    params.handle = {rank.handle_epoch.data(),
                     handle,
                     handle + 32,
                     handle + 64,
                     handle + 96,
                     handle + 128,
                     handle + 160,
                     handle + 192};
    params.cached = cached ? 1 : 0;
    params.region = layout_.arena;
    params.region_rows = kRows;
    params.expert_alignment = static_cast<std::uint32_t>(alignment);
    params.count_alignment = 1;
    params.dtype = static_cast<std::uint32_t>(DataType::bfloat16);
    NormalPlan plan;
    plan.blocks = 2;
    plan.warps = 2;
    params.warps = 2;
    launch_normal_dispatch(params, plan, nullptr);
  }

  const detail::DeviceLayout layout_{shape()};
  const std::vector<std::int32_t> expert_words_ = expert_table_words(*shape().partition);
  std::vector<std::unique_ptr<Rank>> ranks_;
};

struct HostCounts {
  observe::GroupRecord record;
  Statistics statistics;
};
std::vector<HostCounts> host_counts(const std::vector<std::vector<std::int64_t>>& topk,
                                    std::int32_t alignment) {
  std::vector<HostCounts> all(kRanks);
  run_threads(kRanks, {}, [&](World& world) {
    GroupOptions options;
    options.experts = kExperts;
    options.first_expert = kFirstExpert;
    options.top_k = kTopK;
    options.hidden = kHidden;
    options.max_tokens = kMaxTokens;
    Group group(world.team(), options);
    const auto me = static_cast<std::size_t>(world.my_pe());
    const Tensor x = Tensor::empty(DataType::bfloat16, {kTokens[me], kHidden});
    std::memset(x.data, 0, x.bytes());
    std::vector<std::int64_t> experts = topk[me];
    const Routing routing =
        group.route(TensorView(experts.data(), DataType::int64, {kTokens[me], kTopK}));
    detail::AnyDispatchOptions dispatch;
    dispatch.expert_major = alignment > 0;
    if (alignment > 0) dispatch.expert_alignment = alignment;
    Handle handle = detail::dispatch(group, x, routing, dispatch).handle;
    (void)detail::dispatch(group, x, handle, {});
    all[me].statistics = group.statistics();
    for (const auto& pe : observe::read_process())
      if (pe.pe == world.my_pe()) all[me].record = pe.groups.at(0);
    sync(world.team());
  });
  return all;
}

TEST(EpNormalCounts, DispatchesCountAsTheHostBackendDoes) {
  for (const std::int32_t alignment : {0, 4}) {
    SCOPED_TRACE("alignment " + std::to_string(alignment));
    const auto topk = draw_topk();
    Ranks ranks(topk);
    ranks.dispatch(alignment, false);
    ranks.dispatch(alignment, true);
    const std::vector<HostCounts> host = host_counts(topk, alignment);
    std::uint64_t rows = 0;
    for (std::int32_t rank = 0; rank < kRanks; ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank));
      Statistics statistics;
      const auto counts = ranks.counts(rank, statistics);
      const HostCounts& wanted = host[rank];
      EXPECT_EQ(statistics.rows_sent, wanted.statistics.rows_sent);
      EXPECT_EQ(statistics.rows_received, wanted.statistics.rows_received);
      EXPECT_EQ(counts.totals[0].operations, 2U);
      EXPECT_EQ(counts.totals[0].rows, wanted.record.totals[0].rows);
      EXPECT_EQ(counts.totals[0].bytes, wanted.record.totals[0].bytes);
      for (std::size_t peer = 0; peer < counts.peers.size(); ++peer) {
        EXPECT_EQ(counts.peers[peer].rows, wanted.record.peers[peer].rows);
        EXPECT_EQ(counts.peers[peer].bytes, wanted.record.peers[peer].bytes);
      }
      EXPECT_EQ(counts.expert_rows, wanted.record.expert_rows);
      rows += statistics.rows_received;
      ASSERT_EQ(counts.launches.size(), 2U);
      for (const auto& launch : counts.launches) {
        ASSERT_EQ(launch.phases.size(), 3U);
        EXPECT_LE(launch.phases[0].second, launch.phases[1].second);
        EXPECT_LE(launch.phases[1].second, launch.phases[2].second);
        EXPECT_LE(launch.phases[2].second, launch.end);
      }
      for (const auto& durations : counts.durations)
        EXPECT_EQ(std::accumulate(durations.buckets.begin(), durations.buckets.end(), 0ULL),
                  durations.operation == shoal::detail::record::Operation::dispatch ? 2U : 0U);
    }
    EXPECT_GT(rows, 0U);
  }
}

}  // namespace
}  // namespace shoal::ep::cuda
