// SPDX-License-Identifier: Apache-2.0
// normal_ranks.hpp: ranks on one node, each with a fake GPU, and the results that their combines
// must have.
//
// Ranks run one after another. What a rank would get from later ones is there before it starts:
// their notices, flags of rows that an earlier round has staged, and encoded rows. A flag of an
// earlier rank has to be raised by that rank, or the program ends.
#pragma once

#include "fake_gpu/fake_gpu.hpp"
//
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "checks/ep/encoded_rows.hpp"
#include "ep/cuda/device/faults.cuh"
#include "ep/cuda/normal/device/kernels.cuh"
#include "fake_gpu/array.hpp"
#include "unit/ep/expert_shapes.hpp"

namespace shoal::ep::cuda {

using numeric::Bf16;
using test::fake_gpu::Array;

enum class Output { in_heap, outside, summed };

/// Replaces that of the plan: small, so that small cases fill and wrap the pipelines.
struct PlanShape {
  std::int32_t warps = 3, stages = 3;
  std::uint32_t chunk_bytes = 512, segment_chunks = 4;
  std::int32_t staging_blocks = 0;  ///< 0: those of the plan
};

struct Case {
  std::int32_t ranks = 2, top_k = 4;
  std::int64_t hidden = 1032;
  std::vector<std::int32_t> tokens = {70, 40};  ///< of each rank
  Output output = Output::summed;
  bool weighted = false, biased = false;
  std::int32_t blocks = 2;
  PlanShape shape = {};
  Quantize quantize = Quantize::none;  ///< of the combine
  /// A copy of a token is that of a top-k slot, all others are empty. Not with weights.
  bool expert_major = false;

  std::string describe() const {
    return std::to_string(ranks) + " ranks, top-" + std::to_string(top_k) + ", hidden " +
           std::to_string(hidden) + ", output " + std::to_string(static_cast<int>(output)) +
           (weighted ? ", weights" : "") + (biased ? ", biases" : "") + ", " +
           detail::name_of(quantize);
  }
};

struct Rank {
  Array<std::byte> block;
  Array<GroupMemory> memory{1};
  Array<FaultReport> report{1};
  Array<std::uint64_t> handle_epoch{1};
  Array<std::int32_t> copies, first_row, received, source_ends, topk_rows;
  Array<std::int32_t> expert_rows, index_of_slot;  ///< Case::expert_major
  Array<std::int64_t> topk_idx, expert_of_slot;
  Array<std::uint16_t> y, bias, out;
  Array<float> weights, out_weights;
  DeviceGroup group{};
  std::int32_t rows = 0;  ///< received
};

class Ranks {
 public:
  explicit Ranks(const Case& c)
      : c_(c),
        shape_(shape_of(c)),
        layout_(shape_),
        expert_words_(expert_table_words(*shape_.partition)),
        ranks_(c.ranks) {
    limits_.ranks = c.ranks;
    limits_.multiprocessors = c.blocks;
    counts_.assign(static_cast<std::size_t>(c.ranks * c.ranks), 0);
    for (std::int32_t me = 0; me < c.ranks; ++me)
      ranks_[me].block = Array<std::byte>(layout_.total);
    for (std::int32_t me = 0; me < c.ranks; ++me) draw_copies(me);
    for (std::int32_t me = 0; me < c.ranks; ++me) prepare(me);
    for (std::int32_t me = 0; c.expert_major && me < c.ranks; ++me) fill_slots(me);
  }

  /// Two rounds: in the second one, what later ranks stage is there. Returns what differs.
  void run() {
    for (int round = 1; round <= 2; ++round) {
      for (std::int32_t me = 0; encodes() && me < c_.ranks; ++me) encode(me);
      for (std::int32_t me = 0; me < c_.ranks; ++me) run(me, static_cast<std::uint64_t>(round));
      for (std::int32_t me = 0; me < c_.ranks; ++me) {
        if (!encodes()) check_staging(me);
        if (round == 2) check_result(me);
      }
    }
  }

  Rank& rank(std::int32_t r) { return ranks_[r]; }
  /// A row of `rank` that it received from `source`, or from another one.
  std::int32_t row_from(std::int32_t rank, std::int32_t source) { return first_row(source, rank); }

 private:
  static detail::Shape shape_of(const Case& c) {
    detail::Shape shape;
    shape.ranks = c.ranks;
    test::spread_experts(shape, 4 * c.ranks);
    shape.top_k = c.top_k;
    shape.hidden = c.hidden;
    shape.max_tokens = *std::ranges::max_element(c.tokens);
    shape.live_results = 1;
    shape.max_row_bytes = shape.max_combine_row_bytes = static_cast<std::size_t>(c.hidden) * 2;
    return shape;
  }
  // Where a group with one live result stages beside that: at the end of its arena.
  std::size_t staging_weights() const {
    return layout_.arena + layout_.arena_bytes - layout_.staging_weight_bytes;
  }
  std::size_t staging() const { return staging_weights() - layout_.staging_bytes; }
  std::int32_t copies_per_token() const { return std::min(c_.top_k, c_.ranks); }
  std::int32_t& count(std::int32_t from, std::int32_t to) {
    return counts_[static_cast<std::size_t>(from * c_.ranks + to)];
  }
  std::int32_t first_row(std::int32_t from, std::int32_t to) {
    std::int32_t first = 0;
    for (std::int32_t source = 0; source < from; ++source) first += count(source, to);
    return first;
  }
  std::uint32_t below(std::uint32_t end) { return static_cast<std::uint32_t>(random_() % end); }
  std::uint16_t value() {
    const float magnitude = std::uniform_real_distribution<float>(-2, 2)(random_);
    return numeric::to_bf16(below(8) == 0 ? magnitude * 4096 : magnitude).bits;
  }

  void draw_copies(std::int32_t me) {
    Rank& rank = ranks_[me];
    const std::int32_t n = copies_per_token();
    rank.copies = Array<std::int32_t>(static_cast<std::size_t>(c_.tokens[me] * n));
    std::vector<std::int32_t> order(static_cast<std::size_t>(c_.ranks));
    std::iota(order.begin(), order.end(), 0);
    for (std::int32_t token = 0; token < c_.tokens[me]; ++token) {
      std::ranges::shuffle(order, random_);
      const std::uint32_t used = below(static_cast<std::uint32_t>(n) + 1);
      for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(n); ++i)
        rank.copies[token * n + i] =
            i < used ? pack_copy(order[i], count(me, order[i])++) : kNoCopy;
    }
  }

  /// The first expert of a rank has its copies.
  void fill_slots(std::int32_t me) {
    Rank& rank = ranks_[me];
    const std::int32_t n = copies_per_token();
    rank.expert_rows = Array<std::int32_t>(static_cast<std::size_t>(shape_.experts));
    for (std::int32_t to = 0; to < c_.ranks; ++to)
      rank.expert_rows[shape_.first_expert(to)] = first_row(me, to);
    const auto slots = static_cast<std::size_t>(c_.tokens[me] * c_.top_k);
    rank.expert_of_slot = Array<std::int64_t>(slots, 0xff);
    rank.index_of_slot = Array<std::int32_t>(slots, 0x55);
    for (std::int32_t i = 0; i < c_.tokens[me] * n; ++i) {
      const std::int32_t copy = rank.copies[i], slot = i / n * c_.top_k + i % n * (c_.top_k / n);
      if (copy == kNoCopy) continue;
      rank.expert_of_slot[slot] = shape_.first_expert(copy_rank(copy));
      rank.index_of_slot[slot] = copy_row_index(copy);
    }
  }

  void prepare(std::int32_t me) {
    Rank& rank = ranks_[me];
    rank.first_row = Array<std::int32_t>(static_cast<std::size_t>(c_.ranks));
    rank.source_ends = Array<std::int32_t>(static_cast<std::size_t>(c_.ranks));
    rank.received = Array<std::int32_t>(static_cast<std::size_t>(c_.ranks));
    for (std::int32_t other = 0; other < c_.ranks; ++other) {
      rank.first_row[other] = first_row(me, other);
      rank.source_ends[other] = first_row(other + 1, me);
    }
    rank.rows = rank.received[me] = rank.source_ends[c_.ranks - 1];
    rank.handle_epoch[0] = 7;
    const std::size_t slots = static_cast<std::size_t>(rank.rows) * c_.top_k;
    const std::size_t y_rows = c_.output == Output::summed ? slots : rank.rows;
    rank.y = Array<std::uint16_t>(y_rows * c_.hidden);
    for (std::size_t i = 0; i < y_rows * c_.hidden; ++i) rank.y[i] = value();
    if (c_.output == Output::in_heap)
      std::memcpy(rank.block.data() + layout_.arena, rank.y.data(), y_rows * c_.hidden * 2);
    std::vector<std::int32_t> order(slots);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random_);
    rank.topk_rows = Array<std::int32_t>(slots);
    rank.topk_idx = Array<std::int64_t>(slots);
    rank.weights = Array<float>(slots);
    for (std::size_t i = 0; i < slots; ++i) {
      const bool used = below(3) != 0;
      rank.topk_rows[i] = used ? order[i] : -1;
      rank.topk_idx[i] = used ? 0 : -1;
      rank.weights[i] = std::uniform_real_distribution<float>(0, 1)(random_);
    }
    const std::size_t results = static_cast<std::size_t>(c_.tokens[me]) * c_.hidden;
    rank.bias = Array<std::uint16_t>(results);
    for (std::size_t i = 0; i < results; ++i) rank.bias[i] = value();
    rank.out = Array<std::uint16_t>(results, 0x77);
    rank.out_weights = Array<float>(static_cast<std::size_t>(c_.tokens[me]) * c_.top_k, 0x77);
    std::memset(rank.block.data() + staging(), 0x55, layout_.normal_end - staging());
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

  NormalCombine parameters(std::int32_t me, NormalPlan& plan) {
    Rank& rank = ranks_[me];
    NormalCombine params{};
    params.group = rank.group;
    const bool in_heap = c_.output == Output::in_heap, summed = c_.output == Output::summed;
    params.y = in_heap && !encodes() ? layout_.arena : staging();
    params.y_weights = c_.weighted ? staging_weights() : detail::kNoRoom;
    params.weight_stride = static_cast<std::uint32_t>(c_.top_k) * 4;
    CombineStaging& staging = params.staging;
    if (!in_heap) staging.rows = reinterpret_cast<const std::byte*>(rank.y.data());
    if (in_heap && encodes()) staging.rows = rank.block.data() + layout_.arena;
    if (summed) {
      staging.topk_rows = rank.topk_rows.data();
      staging.row_count = rank.rows * c_.top_k;
    }
    if (c_.weighted) {
      staging.weights = rank.weights.data();
      staging.weight_stride = c_.top_k;
      if (!summed) staging.topk_idx = rank.topk_idx.data();
    }
    params.row_bytes = static_cast<std::uint32_t>(c_.hidden * 2);
    params.tokens = c_.tokens[me];
    params.copies_per_token = copies_per_token();
    params.stage_rows = static_cast<std::uint32_t>(summed ? c_.top_k : copies_per_token());
    params.copies = rank.copies.data();
    if (c_.expert_major) {
      params.expert_major = 1;
      params.copies_per_token = c_.top_k;
      params.stage_rows = static_cast<std::uint32_t>(c_.top_k);
      params.topk_idx = rank.expert_of_slot.data();
      params.expert_row_indices = rank.index_of_slot.data();
      params.handle.expert_rows = rank.expert_rows.data();
    }
    params.handle.epoch = rank.handle_epoch.data();
    params.handle.first_row = rank.first_row.data();
    params.handle.source_ends = rank.source_ends.data();
    params.handle.received = rank.received.data();
    if (c_.biased) params.bias[1] = reinterpret_cast<const std::byte*>(rank.bias.data());
    params.out = reinterpret_cast<std::byte*>(rank.out.data());
    if (c_.weighted) params.out_weights = rank.out_weights.data();
    params.dtype = static_cast<std::uint32_t>(DataType::bfloat16);
    params.quantize = static_cast<std::uint32_t>(c_.quantize);
    if (encodes()) {
      plan = plan_encoded_combine(c_.blocks, limits_);
      plan.warps = c_.shape.warps;
      params.chunk_bytes = plan.stage_bytes;
      params.segment_chunks = plan.segment_chunks;
      return params;
    }
    const StagedOutput staged = summed        ? StagedOutput::sums
                                : !in_heap    ? StagedOutput::rows
                                : c_.weighted ? StagedOutput::weights
                                              : StagedOutput::none;
    plan = adds_many_rows(params)
               ? plan_direct_combine(c_.blocks, limits_, staged)
               : plan_combine(c_.blocks, params.row_bytes, params.tokens,
                              static_cast<std::int32_t>(params.stage_rows), limits_, staged);
    reshape(plan, params.row_bytes);
    staging.blocks = plan.staging_blocks;
    staging.copy_bytes = plan.copy_bytes;
    params.chunk_bytes = plan.stage_bytes;
    params.stages = static_cast<std::uint32_t>(plan.stages);
    params.warps = static_cast<std::uint32_t>(plan.warps);
    params.segment_chunks = plan.segment_chunks;
    return params;
  }

  void reshape(NormalPlan& plan, std::uint32_t row_bytes) const {
    const PlanShape& shape = c_.shape;
    if (shape.staging_blocks != 0 && plan.staging_blocks != 0)
      plan.staging_blocks = shape.staging_blocks;
    const std::uint32_t shared = plan.copy_bytes * static_cast<std::uint32_t>(plan.warps);
    plan.copy_bytes = shared / static_cast<std::uint32_t>(shape.warps) / 128 * 128;
    plan.warps = shape.warps;
    plan.stages = shape.stages;
    plan.stage_bytes = std::min(shape.chunk_bytes, (row_bytes + 511) / 512 * 512);
    plan.segment_chunks = shape.segment_chunks;
  }

  std::uint64_t& word(std::int32_t at, std::size_t offset) {
    return *reinterpret_cast<std::uint64_t*>(ranks_[at].block.data() + offset);
  }

  /// Writes the data of later ranks into the block of `me`.
  void write_for_later(std::int32_t me, std::uint64_t epoch, std::int32_t later) {
    NormalPlan plan;
    const NormalCombine params = parameters(later, plan);
    detail::DeviceNotice notice{};
    notice.region = params.y;
    notice.weights = params.y_weights;
    notice.handle_epoch = ranks_[later].handle_epoch[0];
    notice.operation = static_cast<std::uint32_t>(detail::Operation::combine);
    notice.dtype = params.dtype;
    notice.row_bytes = params.row_bytes;
    notice.has_weights = c_.weighted;
    notice.quantize = params.quantize;
    notice.weight_stride = params.weight_stride;
    notice.blocks = static_cast<std::uint32_t>(plan.blocks);
    constexpr std::uint64_t kStagedShift = 4;  // log2 of kStagedRows
    const bool stages = params.staging.rows != nullptr || params.staging.weights != nullptr;
    notice.staged = stages && !encodes() ? 1 + kStagedShift : 0;
    std::memcpy(ranks_[me].block.data() + layout_.notices +
                    ((epoch & 1) * c_.ranks + later) * layout_.notice_bytes,
                &notice, sizeof notice);
    word(me, layout_.entered + later * kLine) = epoch;
    word(me, layout_.finished + later * kLine) += notice.blocks;
    for (std::size_t piece = 0; piece < layout_.staged_pieces; ++piece)
      word(me, layout_.staged_flags + (later * layout_.staged_pieces + piece) * 8) = epoch;
  }

  bool encodes() const { return c_.quantize != Quantize::none; }
  /// Encodes the rows of `me`, as the kernel before a combine does.
  void encode(std::int32_t me) {
    NormalPlan plan;
    const NormalCombine params = parameters(me, plan);
    launch_stage_output({params, params.quantize}, 2, nullptr);
  }
  void run(std::int32_t me, std::uint64_t epoch) {
    for (std::int32_t later = me + 1; later < c_.ranks; ++later) write_for_later(me, epoch, later);
    NormalPlan plan;
    NormalCombine params = parameters(me, plan);
    if (encodes()) params.staging = {};
    launch_normal_combine(params, plan, nullptr);
    ASSERT_EQ(ranks_[me].memory[0].aborted, 0U) << "fault " << ranks_[me].report[0].fault;
    ASSERT_EQ(ranks_[me].memory[0].epoch, epoch);
  }

  float weight(Rank& rank, std::int64_t row, std::int32_t slot) {
    const std::int64_t i = row * c_.top_k + slot;
    if (rank.topk_idx[i] < 0) return 0;
    if (c_.output != Output::summed) return rank.weights[i];
    const std::int32_t added = rank.topk_rows[i];
    return added >= 0 && added < rank.rows * c_.top_k ? rank.weights[added] : 0;
  }
  /// Output of the experts of `rank` for a received row.
  Bf16 output(Rank& rank, std::int64_t row, std::int64_t channel) {
    if (c_.output != Output::summed) return {rank.y[row * c_.hidden + channel]};
    float sum = 0;
    for (std::int32_t slot = 0; slot < c_.top_k; ++slot)
      if (const std::int32_t added = rank.topk_rows[row * c_.top_k + slot];
          added >= 0 && added < rank.rows * c_.top_k)
        sum += numeric::to_float(Bf16{rank.y[added * c_.hidden + channel]});
    return numeric::to_bf16(sum);
  }

  void check_result(std::int32_t me) {
    Rank& rank = ranks_[me];
    const std::int32_t n = copies_per_token();
    for (std::int64_t token = 0; token < c_.tokens[me]; ++token) {
      std::vector<float> sums(static_cast<std::size_t>(c_.hidden)), row = sums;
      const std::int64_t first = token * c_.hidden;
      for (std::int64_t channel = 0; c_.biased && channel < c_.hidden; ++channel)
        sums[channel] = numeric::to_float(Bf16{rank.bias[first + channel]});
      for (std::int32_t c = 0; c < n; ++c) {
        const std::int32_t copy = rank.copies[token * n + c];
        if (copy == kNoCopy) continue;
        const std::int64_t at = first_row(me, copy_rank(copy)) + copy_row_index(copy);
        for (std::int64_t channel = 0; channel < c_.hidden; ++channel)
          row[channel] = numeric::to_float(output(ranks_[copy_rank(copy)], at, channel));
        pass_combine(c_.quantize, row);
        for (std::int64_t channel = 0; channel < c_.hidden; ++channel)
          sums[channel] += row[channel];
      }
      for (std::int64_t channel = 0; channel < c_.hidden; ++channel)
        ASSERT_EQ(rank.out[first + channel], numeric::to_bf16(sums[channel]).bits)
            << "rank " << me << ", token " << token << ", channel " << channel << "; "
            << c_.describe();
      for (std::int32_t slot = 0; c_.weighted && slot < c_.top_k; ++slot) {
        float sum = 0;
        for (std::int32_t c = 0; c < n; ++c)
          if (const std::int32_t copy = rank.copies[token * n + c]; copy != kNoCopy)
            sum += weight(ranks_[copy_rank(copy)],
                          first_row(me, copy_rank(copy)) + copy_row_index(copy), slot);
        ASSERT_EQ(rank.out_weights[token * c_.top_k + slot], sum)
            << "rank " << me << ", token " << token << ", slot " << slot << "; " << c_.describe();
      }
    }
  }

  /// Rows for other ranks are staged, and no others.
  void check_staging(std::int32_t me) {
    Rank& rank = ranks_[me];
    const auto* const staged =
        reinterpret_cast<const std::uint16_t*>(rank.block.data() + staging());
    const std::int32_t local = first_row(me, me), local_end = local + count(me, me);
    for (std::int64_t row = 0; row < shape_.max_received(); ++row)
      for (std::int64_t channel = 0; channel < c_.hidden; channel += 7) {
        const bool is_staged =
            c_.output != Output::in_heap && row < rank.rows && (row < local || row >= local_end);
        ASSERT_EQ(staged[row * c_.hidden + channel],
                  is_staged ? output(rank, row, channel).bits : 0x5555)
            << "rank " << me << ", row " << row << ", channel " << channel << "; " << c_.describe();
      }
    const auto* const counted =
        reinterpret_cast<const std::uint32_t*>(rank.block.data() + layout_.staged_counts);
    for (std::size_t i = 0; i < c_.ranks * layout_.staged_pieces; ++i) ASSERT_EQ(counted[i], 0U);
  }

  const Case c_;
  const detail::Shape shape_;
  const detail::DeviceLayout layout_;
  const std::vector<std::int32_t> expert_words_;
  NormalLimits limits_;
  std::mt19937 random_{91};
  std::vector<Rank> ranks_;
  std::vector<std::int32_t> counts_;  ///< rows by source and destination
};

}  // namespace shoal::ep::cuda
