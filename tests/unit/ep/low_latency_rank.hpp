// SPDX-License-Identifier: Apache-2.0
// low_latency_rank.hpp: the shapes and combines of low_latency_ranks.hpp, and the memory of a rank.
#pragma once

#include "fake_gpu/fake_gpu.hpp"
//
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "ep/cuda/group/kernel_counts.hpp"
#include "ep/cuda/low_latency/device/kernels.cuh"
#include "ep/cuda/low_latency/internode/internode.cuh"
#include "ep/plan/notices.hpp"
#include "fake_gpu/array.hpp"
#include "unit/ep/expert_shapes.hpp"

namespace shoal::ep::cuda {

using test::fake_gpu::Array;

struct Case {
  std::int32_t ranks = 3, experts = 9, top_k = 5;
  std::int64_t hidden = 1024;
  std::vector<std::int32_t> tokens = {4, 2, 0};  ///< of each rank
  bool masks = false;
  std::int32_t blocks = 3;
  /// Ranks of a node, which reach each other by loads and stores; 0: all ranks.
  std::int32_t node_size = 0;
  std::vector<std::int32_t> first_expert = {};  ///< as in GroupOptions
  std::int32_t none_expert = -1;                ///< as in GroupOptions; in every hole

  bool is_remote(std::int32_t a, std::int32_t b) const {
    return node_size != 0 && a / node_size != b / node_size;
  }
};

/// Options of a rank's combine. An immediate one waits for the weights of other ranks, unless they
/// travelled or it is exact.
struct Combine {
  CombineRowForm form = CombineRowForm::sums;
  bool deferred = true;
  bool unsummed = false;  ///< LowLatencyCombineOptions::unsummed

  bool exact() const { return !is_sums(form); }
};
constexpr Combine kSums{}, kNow{CombineRowForm::sums, false}, kRows{CombineRowForm::rows},
    kLogfmt{CombineRowForm::log_fmt_sums}, kLogfmtNow{CombineRowForm::log_fmt_sums, false},
    kExactLogfmt{CombineRowForm::log_fmt}, kExactLogfmtNow{CombineRowForm::log_fmt, false};
constexpr Combine kFloat8[] = {{CombineRowForm::fp8_sums},   {CombineRowForm::fp8_sums, false},
                               {CombineRowForm::fp8},        {CombineRowForm::fp8, false},
                               {CombineRowForm::mxfp8_sums}, {CombineRowForm::mxfp8_sums, false},
                               {CombineRowForm::mxfp8},      {CombineRowForm::mxfp8, false}};
constexpr Combine kUnsummed[] = {
    {CombineRowForm::rows, true, true},   {CombineRowForm::log_fmt, false, true},
    {CombineRowForm::rows, false, true},  {CombineRowForm::fp8, true, true},
    {CombineRowForm::mxfp8, false, true}, {CombineRowForm::log_fmt, true, true}};

/// plain: magnitudes below 1. small: so small that sums of eight are below 1. mixed: values of all
/// kinds: groups of zeros, of one magnitude, not below one, with NaNs or infinities, of NaNs alone,
/// subnormal ones and some that are as small as normal values can be.
enum class Values { plain, small, mixed };

inline detail::Shape shape_of(const Case& c) {
  detail::Shape shape;
  shape.ranks = c.ranks;
  test::spread_experts(shape, c.experts, c.first_expert);
  shape.top_k = c.top_k;
  shape.hidden = c.hidden;
  shape.low_latency_max_tokens = *std::ranges::max_element(c.tokens);
  shape.mask_failed = c.masks;
  shape.internode = c.node_size != 0;
  return shape;
}

struct Rank {
  Rank(const detail::Shape& shape, Array<std::byte> memory_of_block)
      : block(std::move(memory_of_block)),
        memory(1),
        report(1),
        header(1),
        pairs(static_cast<std::size_t>(shape.low_latency_rows()), 0x77),
        more_slots(static_cast<std::size_t>(shape.low_latency_rows()) * (kMostPerLane - 1), 0x77),
        rows(static_cast<std::size_t>(shape.low_latency_rows() * shape.top_k), 0x77),
        topk(static_cast<std::size_t>(shape.low_latency_max_tokens * shape.top_k)),
        kept(static_cast<std::size_t>(shape.low_latency_rows() * shape.top_k)),
        pending_header(1),
        pending_weights(static_cast<std::size_t>(shape.low_latency_max_tokens * shape.top_k)),
        counts(static_cast<std::size_t>(shape.local_experts)),
        source_token(static_cast<std::size_t>(shape.local_experts * shape.low_latency_rows())),
        layout(static_cast<std::size_t>(shape.local_experts * shape.ranks)),
        waits(static_cast<std::size_t>(shape.ranks)),
        kernel_record(kernel_record_bytes(shape.local_experts)),
        scales(static_cast<std::size_t>(shape.local_experts * shape.low_latency_rows()) *
               shape.hidden / numeric::kNvfp4Group),
        received(static_cast<std::size_t>(shape.local_experts * shape.low_latency_rows() *
                                          shape.hidden)) {}

  HandleView handle() {
    return {header.data(), pairs.data(), rows.data(),
            kept.data(),   topk.data(),  group.top_k > kOnePerLane ? more_slots.data() : nullptr};
  }
  PendingView pending() { return {pending_header.data(), pending_weights.data()}; }

  Array<std::byte> block;
  std::vector<Array<std::byte>> outboxes;  ///< one for each rank, used for remote ones
  InternodeRanks remote{};
  Array<GroupMemory> memory;
  Array<FaultReport> report;
  Array<HandleHeader> header;
  Array<HandlePair> pairs;
  Array<std::uint32_t> more_slots;
  Array<std::int32_t> rows, topk;
  Array<float> kept;
  Array<PendingHeader> pending_header;
  Array<float> pending_weights;
  Array<std::int32_t> counts, source_token;
  Array<std::int64_t> layout;
  Array<std::uint64_t> waits;
  Array<std::byte> kernel_record;
  Array<std::uint32_t> scales;
  Array<std::uint16_t> received;
  DeviceGroup group{};
  std::vector<std::uint16_t> x, y, out;
  std::vector<std::int64_t> topk_idx;
  std::vector<float> weights;
};

}  // namespace shoal::ep::cuda
