// SPDX-License-Identifier: Apache-2.0
// The combine of normal mode on a fake GPU where it copies the row of each top-k slot
// (CombineOptions::unsummed): rows of arbitrary bits, of every dtype.
//
// Ranks run one after another; the notices of later ranks are there before one starts.
// @traits fake_gpu
#include "fake_gpu/fake_gpu.hpp"
//
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "ep/cuda/device/faults.cuh"
#include "ep/cuda/normal/device/kernels.cuh"
#include "fake_gpu/array.hpp"
#include "unit/ep/expert_shapes.hpp"

namespace shoal::ep::cuda {
namespace {

using test::fake_gpu::Array;

struct Case {
  std::int32_t ranks = 2, top_k = 4;
  std::int64_t hidden = 520;
  std::vector<std::int32_t> tokens = {21, 9};  ///< of each rank
  DataType dtype = DataType::bfloat16;
  bool weighted = true;
};

struct Rank {
  Array<std::byte> block, out;
  Array<GroupMemory> memory{1};
  Array<FaultReport> report{1};
  Array<std::uint64_t> handle_epoch{1};
  Array<std::int64_t> topk_idx;
  Array<std::int32_t> row_indices, expert_rows, first_row;
  Array<float> out_weights;
  DeviceGroup group{};
};

class Ranks {
 public:
  explicit Ranks(const Case& c) : c_(c), shape_(shape_of(c)), layout_(shape_), ranks_(c.ranks) {
    for (Rank& rank : ranks_) rank.block = Array<std::byte>(layout_.total);
    for (std::int32_t me = 0; me < c.ranks; ++me) draw_slots(me);
    for (std::int32_t me = 0; me < c.ranks; ++me) prepare(me);
  }

  void run() {
    for (std::int32_t me = 0; me < c_.ranks; ++me) {
      for (std::int32_t later = me + 1; later < c_.ranks; ++later) write_notice(me, later);
      launch_normal_combine(parameters(me), plan(me), nullptr);
      ASSERT_EQ(ranks_[me].memory[0].aborted, 0U) << "fault " << ranks_[me].report[0].fault;
      check(me);
    }
  }

 private:
  static detail::Shape shape_of(const Case& c) {
    detail::Shape shape;
    shape.ranks = c.ranks;
    test::spread_experts(shape, 5 * c.ranks);
    shape.top_k = c.top_k;
    shape.hidden = c.hidden;
    shape.max_tokens = c.top_k * *std::ranges::max_element(c.tokens);
    shape.live_results = 2;
    shape.max_row_bytes = shape.max_combine_row_bytes =
        static_cast<std::size_t>(c.hidden) * size_of(c.dtype);
    return shape;
  }
  std::uint32_t row_bytes() const {
    return static_cast<std::uint32_t>(shape_.max_combine_row_bytes);
  }
  std::size_t slots(std::int32_t me) const {
    return static_cast<std::size_t>(c_.tokens[me]) * c_.top_k;
  }

  /// Draws the experts of a rank's tokens, and numbers its rows of each expert.
  void draw_slots(std::int32_t me) {
    Rank& rank = ranks_[me];
    rank.topk_idx = Array<std::int64_t>(slots(me));
    rank.row_indices = Array<std::int32_t>(slots(me));
    std::vector<std::int32_t>& count = counts_.emplace_back(shape_.experts);
    for (std::size_t i = 0; i < slots(me); ++i) {
      rank.topk_idx[i] =
          random_() % 5 == 0 ? -1 : static_cast<std::int64_t>(random_() % shape_.experts);
      if (rank.topk_idx[i] >= 0) rank.row_indices[i] = count[rank.topk_idx[i]]++;
    }
  }

  void prepare(std::int32_t me) {
    Rank& rank = ranks_[me];
    rank.handle_epoch[0] = 7;
    rank.first_row = Array<std::int32_t>(static_cast<std::size_t>(c_.ranks));
    rank.expert_rows = Array<std::int32_t>(static_cast<std::size_t>(shape_.experts));
    std::int32_t next = 0;
    for (std::int32_t expert = 0; expert < shape_.experts; ++expert) {
      if (shape_.local_of(expert) == 0) next = 0;
      for (std::int32_t source = 0; source < c_.ranks; ++source) {
        if (source == me) rank.expert_rows[expert] = next;
        next += counts_[source][expert];
      }
    }
    for (std::size_t at = layout_.arena; at < layout_.normal_end; at += 4) {
      const auto word = static_cast<std::uint32_t>(random_());
      std::memcpy(rank.block.data() + at, &word, 4);
    }
    rank.out = Array<std::byte>(slots(me) * row_bytes(), 0x77);
    rank.out_weights = Array<float>(slots(me));
    DeviceGroup& group = rank.group;
    group.layout = layout_;
    for (std::int32_t other = 0; other < c_.ranks; ++other)
      group.block[other] = ranks_[other].block.data();
    group.memory = rank.memory.data();
    group.report = rank.report.data();
    group.timeout_ns = 10'000'000'000;
    group.ranks = c_.ranks;
    group.me = me;
    set_experts(group, *shape_.partition, me, expert_words_.data());
    group.top_k = c_.top_k;
  }

  NormalPlan plan(std::int32_t me) const {
    return plan_combine(2, row_bytes(), static_cast<std::int32_t>(slots(me)), 1, {});
  }
  NormalCombine parameters(std::int32_t me) {
    Rank& rank = ranks_[me];
    const NormalPlan chosen = plan(me);
    NormalCombine params{};
    params.group = rank.group;
    params.y = layout_.arena;
    params.y_weights = c_.weighted ? layout_.staging_weights : detail::kNoRoom;
    params.weight_stride = sizeof(float);
    params.row_bytes = row_bytes();
    params.tokens = static_cast<std::int32_t>(slots(me));
    params.copies_per_token = 1;
    params.expert_major = params.unsummed = 1;
    params.stage_rows = 1;
    params.topk_idx = rank.topk_idx.data();
    params.expert_row_indices = rank.row_indices.data();
    params.handle.epoch = rank.handle_epoch.data();
    params.handle.first_row = rank.first_row.data();
    params.handle.expert_rows = rank.expert_rows.data();
    params.out = rank.out.data();
    if (c_.weighted) params.out_weights = rank.out_weights.data();
    params.dtype = static_cast<std::uint32_t>(c_.dtype);
    params.chunk_bytes = chosen.stage_bytes;
    params.stages = static_cast<std::uint32_t>(chosen.stages);
    params.warps = static_cast<std::uint32_t>(chosen.warps);
    params.segment_chunks = chosen.segment_chunks;
    return params;
  }

  /// Writes what a later rank tells `me` into its block.
  void write_notice(std::int32_t me, std::int32_t later) {
    const NormalCombine params = parameters(later);
    detail::DeviceNotice notice{};
    notice.region = params.y;
    notice.weights = params.y_weights;
    notice.handle_epoch = ranks_[later].handle_epoch[0];
    notice.operation = static_cast<std::uint32_t>(detail::Operation::combine);
    notice.dtype = params.dtype;
    notice.row_bytes = params.row_bytes;
    notice.has_weights = c_.weighted;
    notice.weight_stride = params.weight_stride;
    notice.blocks = static_cast<std::uint32_t>(plan(later).blocks);
    std::byte* const block = ranks_[me].block.data();
    std::memcpy(block + layout_.notices + (c_.ranks + later) * layout_.notice_bytes, &notice,
                sizeof notice);
    *reinterpret_cast<std::uint64_t*>(block + layout_.entered + later * kLine) = 1;
    *reinterpret_cast<std::uint64_t*>(block + layout_.finished + later * kLine) += notice.blocks;
  }

  void check(std::int32_t me) {
    Rank& rank = ranks_[me];
    const std::vector<std::byte> zeros(row_bytes());
    for (std::size_t i = 0; i < slots(me); ++i) {
      const std::int64_t expert = rank.topk_idx[i];
      const std::byte* wanted = zeros.data();
      float weight = 0;
      if (expert >= 0) {
        const std::int64_t row = rank.expert_rows[expert] + rank.row_indices[i];
        const std::byte* const block = ranks_[shape_.rank_of(expert)].block.data();
        wanted = block + layout_.arena + row * row_bytes();
        std::memcpy(&weight, block + layout_.staging_weights + row * sizeof weight, sizeof weight);
      }
      ASSERT_EQ(std::memcmp(rank.out.data() + i * row_bytes(), wanted, row_bytes()), 0)
          << "rank " << me << ", top-k slot " << i;
      if (c_.weighted)
        ASSERT_EQ(std::memcmp(&rank.out_weights[i], &weight, sizeof weight), 0)
            << "rank " << me << ", weight " << i;
    }
  }

  const Case c_;
  const detail::Shape shape_;
  const detail::DeviceLayout layout_;
  const std::vector<std::int32_t> expert_words_ = expert_table_words(*shape_.partition);
  std::mt19937 random_{17};
  std::vector<Rank> ranks_;
  std::vector<std::vector<std::int32_t>> counts_;  ///< rows by source and expert
};

TEST(EpUnsummedKernels, RowsOfEveryDtype) {
  for (const DataType dtype : {DataType::bfloat16, DataType::float16, DataType::float32})
    Ranks({.dtype = dtype}).run();
}

TEST(EpUnsummedKernels, OneRankIdleRanksAndManySlots) {
  Ranks({.ranks = 1, .top_k = 1, .hidden = 4104, .tokens = {30}}).run();
  Ranks({.ranks = 3, .top_k = 6, .hidden = 8, .tokens = {0, 13, 5}, .weighted = false}).run();
  Ranks({.ranks = 3, .top_k = 32, .hidden = 1032, .tokens = {2, 0, 3}}).run();
}

}  // namespace
}  // namespace shoal::ep::cuda
