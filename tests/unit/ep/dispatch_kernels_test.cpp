// SPDX-License-Identifier: Apache-2.0
// The dispatch of normal mode with bulk copies on a fake GPU: expert-major rows of one rank in
// every format, also with a global scale for each expert, bit by bit.
// @traits fake_gpu
#include "fake_gpu/fake_gpu.hpp"
//
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "checks/ep/encoded_rows.hpp"
#include "ep/cuda/device/faults.cuh"
#include "ep/cuda/normal/device/kernels.cuh"
#include "fake_gpu/array.hpp"
#include "unit/ep/expert_shapes.hpp"

namespace shoal::ep::cuda {
namespace {

using test::fake_gpu::Array;

constexpr std::int64_t kHidden = 576;

detail::Shape shape_of(std::int32_t experts, std::int32_t top_k, std::int32_t rows) {
  detail::Shape shape;
  shape.ranks = 1;
  test::spread_experts(shape, experts);
  shape.top_k = top_k;
  shape.hidden = kHidden;
  shape.max_tokens = rows;
  shape.live_results = 1;
  shape.max_row_bytes = shape.max_combine_row_bytes = kHidden * 2;
  return shape;
}

/// Tokens of one rank, each for up to kTopK of its experts.
template <std::int32_t kExperts = 5, std::int32_t kTopK = 3, std::int32_t kTokens = 40>
class Rank {
 public:
  Rank() {
    std::mt19937 random(5);
    for (std::int64_t i = 0; i < kTokens * kHidden; ++i) {
      const float value = std::normal_distribution<float>()(random);
      x_[i] = numeric::to_bf16(i % 97 == 0 ? value * 512 : value).bits;
    }
    for (std::int32_t token = 0; token < kTokens; ++token)
      for (std::int32_t k = 0; k < kTopK; ++k) {
        const std::int64_t at = token * kTopK + k, expert = (token * 7 + k * 2) % kExperts;
        static_assert(kExperts % 2 == 1, "experts of a token are different ones");
        weights_[at] = static_cast<float>(at + 1);
        topk_idx_[at] = random() % 6 == 0 ? -1 : expert;
        if (topk_idx_[at] >= 0) row_indices_[at] = expert_counts_[expert]++;
      }
    for (std::int32_t token = 0; token < kTokens; ++token) copies_[token] = pack_copy(0, token);
    rank_counts_[0] = kTokens;
    group_.layout = layout_;
    group_.block[0] = block_.data();
    group_.memory = memory_.data();
    group_.report = report_.data();
    group_.timeout_ns = 30'000'000'000;
    group_.ranks = 1;
    group_.top_k = kTopK;
    set_experts(group_, *shape_.partition, 0, expert_words_.data());
  }

  /// `scales`: the global scale, or one for each expert. Rows are compared if no fault is wanted.
  void dispatch(Quantize quantize, std::vector<float> scales, Fault fault = Fault::none,
                bool expert_major = true) {
    const detail::RowFormat format(quantize);
    NormalDispatch params{};
    params.group = group_;
    params.x = reinterpret_cast<const std::byte*>(x_.data());
    params.row_bytes = static_cast<std::uint32_t>(format.row_bytes(kHidden));
    params.x_row_bytes = kHidden * 2;
    params.quantize = static_cast<std::uint32_t>(quantize);
    params.encodes = quantize == Quantize::none ? 0 : 1;
    params.weights = weights_.data();
    params.all_weights = 1;
    params.copies = copies_.data();
    params.global_scale = scales.data();
    params.by_expert = scales.size() > 1 ? 1 : 0;
    params.tokens = kTokens;
    params.copies_per_token = 1;
    params.write_indices = 1;
    params.scale_count =
        static_cast<std::uint32_t>(format.scale_words(kHidden, detail::has_byte_scales(quantize)));
    params.routing = {topk_idx_.data(),    nullptr, rank_counts_.data(), expert_counts_.data(),
                      row_indices_.data(), nullptr};
    const auto handle = [&](int i) { return handle_.data() + i * (kExperts + 11); };
    params.handle = {epoch_.data(), handle(0), handle(1), handle(2),
                     handle(3),     handle(4), handle(5), handle(6)};
    params.region = layout_.arena;
    params.region_rows = kRows;
    params.expert_alignment = expert_major ? 1 : 0;
    params.count_alignment = 1;
    params.dtype = static_cast<std::uint32_t>(DataType::bfloat16);
    NormalLimits limits;
    limits.ranks = 1;
    limits.multiprocessors = 2;
    const std::uint32_t beside = params.by_expert != 0
                                     ? params.row_bytes + align_up(4 * params.scale_count, 16)
                                     : 4 * params.scale_count;
    limits.shared_bytes = kBarrierBytes + 4 * 2 * align_up(params.x_row_bytes + beside, 128) + 256;
    const NormalPlan plan = plan_dispatch(2, params.x_row_bytes, beside, limits,
                                          kExperts * sizeof(std::int32_t), params.row_bytes);
    params.stage_bytes = plan.stage_bytes;
    params.stages = static_cast<std::uint32_t>(plan.stages);
    params.warps = static_cast<std::uint32_t>(plan.warps);
    params.table_offset = plan.table_offset;
    launch_normal_dispatch(params, plan, nullptr);
    ASSERT_EQ(report_[0].fault, static_cast<std::uint32_t>(fault));
    if (fault == Fault::none) check(quantize, params, scales);
  }

 private:
  void check(Quantize quantize, const NormalDispatch& params, const std::vector<float>& scales) {
    const bool expert_major = params.expert_alignment != 0;
    const detail::SideRecord record(params.scale_count * 4, expert_major ? 1 : kTopK);
    const detail::RegionLayout region(kRows, params.row_bytes, record.bytes);
    const std::byte* const rows = block_.data() + layout_.arena;
    for (std::int64_t at = 0; at < kTokens * kTopK; ++at) {
      if (expert_major && topk_idx_[at] < 0) continue;
      const auto expert = static_cast<std::size_t>(topk_idx_[at]);
      const std::int64_t row =
          expert_major ? params.handle.expert_rows[expert] + row_indices_[at] : at / kTopK;
      const std::int64_t slot = expert_major ? 0 : at % kTopK;
      const std::byte* const fields = rows + region.records + row * record.bytes;
      EXPECT_EQ(reinterpret_cast<const std::int64_t*>(fields + record.topk_idx)[slot],
                topk_idx_[at])
          << "row " << row << ", slot " << slot;
      EXPECT_EQ(reinterpret_cast<const float*>(fields + record.weights)[slot], weights_[at]);
      EXPECT_EQ(*reinterpret_cast<const std::int32_t*>(fields + record.source_token), at / kTopK);
      if (!expert_major && slot != 0) continue;
      if (quantize == Quantize::none) {
        EXPECT_EQ(std::memcmp(rows + row * params.row_bytes, x_.data() + at / kTopK * kHidden,
                              params.row_bytes),
                  0);
        continue;
      }
      const EncodedRow want(quantize,
                            {x_.data() + at / kTopK * kHidden, static_cast<std::size_t>(kHidden)},
                            scales[scales.size() > 1 ? expert : 0]);
      EXPECT_EQ(std::memcmp(rows + row * params.row_bytes, want.codes.data(), want.codes.size()), 0)
          << "row " << row;
      EXPECT_EQ(std::memcmp(rows + region.records + row * record.bytes, want.scales.data(),
                            want.scales.size() * 4),
                0)
          << "scales of row " << row;
    }
  }

  static constexpr std::int64_t kRows = kTokens * kTopK;
  const detail::Shape shape_ = shape_of(kExperts, kTopK, kRows);
  const detail::DeviceLayout layout_{shape_};
  const std::vector<std::int32_t> expert_words_ = expert_table_words(*shape_.partition);
  Array<std::byte> block_{layout_.total + kRows * 4096};
  Array<GroupMemory> memory_{1};
  Array<FaultReport> report_{1};
  Array<std::uint16_t> x_{kTokens * kHidden};
  Array<std::int64_t> topk_idx_{kRows};
  Array<std::int32_t> row_indices_{kRows}, copies_{kTokens}, rank_counts_{1},
      expert_counts_{kExperts}, handle_{7 * (kExperts + 11)};
  Array<float> weights_{kRows};
  Array<std::uint64_t> epoch_{1};
  DeviceGroup group_{};
};

TEST(EpDispatchKernel, EncodesRowsInEveryFormat) {
  Rank<> rank;
  for (const Quantize quantize : detail::kQuantizations)
    if (quantize != Quantize::none) {
      SCOPED_TRACE(detail::name_of(quantize));
      rank.dispatch(quantize, {kGlobalScale});
    }
}

// More top-k slots than a warp has lanes.
TEST(EpDispatchKernel, SendsRowsWithManySlots) {
  const auto send = [](auto& rank) {
    for (const bool expert_major : {true, false})
      for (const Quantize quantize : detail::kQuantizations) {
        SCOPED_TRACE(detail::name_of(quantize));
        rank.dispatch(quantize, {kGlobalScale}, Fault::none, expert_major);
      }
  };
  Rank<35, 33, 9> odd;
  send(odd);
  Rank<129, 128, 5> most;
  send(most);
  std::vector<float> scales(129, 2);
  scales[100] = 0.25F;
  most.dispatch(Quantize::nvfp4, scales);
}

TEST(EpDispatchKernel, EncodesRowsWithTheGlobalScaleOfTheirExpert) {
  Rank<> rank;
  rank.dispatch(Quantize::nvfp4, {1, 37.5F, 3, 400, 0.25F});
  rank.dispatch(Quantize::nvfp4, {2, 2, 2, 2, 2});
  for (const float bad : {0.0F, -1.0F, std::numeric_limits<float>::infinity()})
    Rank<>().dispatch(Quantize::nvfp4, {2, 2, bad, 2, 2}, Fault::bad_scale);
}

}  // namespace
}  // namespace shoal::ep::cuda
