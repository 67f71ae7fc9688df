// SPDX-License-Identifier: Apache-2.0
// combine_weights.cuh: the sums of top-k weights that a combine returns.
//
// Moves, for each token: top_k floats from each of its ranks. A load from another GPU is slow on a
// full link, so a warp asks for the weights of a token when it asks for the rows, and adds them
// when it turns to the next item. Combines whose warps waited for weights at once took longer
// (docs/decisions/staged-expert-output.md).
#pragma once

#include "ep/cuda/normal/device/combine_sources.cuh"

namespace shoal::ep::cuda {
namespace {

/// Waits for the weight of a top-k slot at a rank of a token, and adds it.
template <AddedRows kRows>
__device__ void add_weight(const NormalCombine& params, const CombineSources& sources,
                           const TokenCopy<kRows>& from, std::uint32_t slot, float& sum) {
  if (slot >= static_cast<std::uint32_t>(params.group.top_k)) return;
  const bool staged_here = from.rank() == params.group.me && params.staging.weights != nullptr;
  sum = numeric::add(
      sum, staged_here ? weight_of_slot(params, sources.first_local_row + from.row(),
                                        static_cast<std::int32_t>(slot))
                       : ptx::ld_relaxed_sys_global(
                             reinterpret_cast<const float*>(weights_of(sources, from)) + slot));
}

/// Writes the sums of a token with more top-k slots than a warp has lanes.
template <AddedRows kRows, int kPerLane>
__device__ __noinline__ void write_weights(const NormalCombine& params,
                                           const CombineSources& sources, std::uint32_t token,
                                           TokenCopies<kRows, kPerLane> copies) {
  const auto top_k = static_cast<std::uint32_t>(params.group.top_k);
  float* const out = params.out_weights + static_cast<std::int64_t>(token) * top_k;
  if constexpr (kRows == AddedRows::of_experts) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (number_of_lane(i) >= top_k) continue;
      const TokenCopy<kRows>& copy = copies.copy[i];
      out[number_of_lane(i)] = copy.exists()
                                   ? ptx::ld_relaxed_sys_global(
                                         reinterpret_cast<const float*>(weights_of(sources, copy)))
                                   : 0;
    }
  } else {
    for (std::uint32_t slot = lane_id(); slot < top_k + lane_id(); slot += 32) {
      float sum = 0;
      for (NumberSet<kPerLane> left = copies.exist; left.any(); left = left.without_first())
        add_weight(params, sources, copies.of(static_cast<std::uint32_t>(left.first())), slot, sum);
      if (slot < top_k) out[slot] = sum;
    }
  }
}

/// Waits for the weights of a token with many copies, and adds them over its ranks in order; lane k
/// has those of top-k slot k. The copy comes by value: a reference would keep the caller's state of
/// fetches on the stack.
template <AddedRows kRows>
__device__ __noinline__ float sum_of_weights(const NormalCombine& params,
                                             const CombineSources& sources, TokenCopy<kRows> copy,
                                             std::uint32_t copies) {
  float sum = 0;
  for (std::uint32_t c = 0; c < copies; ++c)
    add_weight(params, sources, copy.of_lane(c), lane_id(), sum);
  return sum;
}

/// The weights of a token on their way to the registers of a warp, which calls every function as a
/// whole.
template <AddedRows kRows>
class TokenWeights {
 public:
  /// Asks for the weights of a token, after finish(). Lanes have its copies, the first `copies` of
  /// them exist; lane k has in `row_of_slot` the row of y for top-k slot k, unchecked, where this
  /// rank's rows are summed.
  __device__ void load(const NormalCombine& params, const CombineSources& sources,
                       std::uint32_t token, const TokenCopy<kRows>& copy, std::uint32_t copies,
                       std::int32_t row_of_slot) {
    if constexpr (kRows != AddedRows::of_experts)
      if (params.group.top_k > kOnePerLane)
        return write_weights(params, sources, token, TokenCopies<kRows, 1>(params, token));
    token_ = token;
    copies_ = 0;
    sign_[0] = sign_[1] = 0;
    values_[0] = values_[1] = 0;
    if constexpr (kRows == AddedRows::of_experts) {  // each top-k slot has one
      if (copy.exists())
        values_[0] =
            ptx::ld_relaxed_sys_global(reinterpret_cast<const float*>(weights_of(sources, copy)));
    } else if (copies * static_cast<std::uint32_t>(params.group.top_k) > 64) {
      values_[0] = sum_of_weights(params, sources, copy, copies);
    } else {
      copies_ = copies;
      load_half<0>(params, sources, copy, row_of_slot);
      if (copies * static_cast<std::uint32_t>(params.group.top_k) > 32)
        load_half<1>(params, sources, copy, row_of_slot);
    }
  }

  /// Adds over the ranks in order what load() asked for, if anything, and writes the sums.
  __device__ void finish(const NormalCombine& params) {
    if (token_ == kNoToken) return;
    // Expert-major, `copies_per_token` is top_k, or 1 where a token is a top-k slot.
    const auto top_k = static_cast<std::uint32_t>(
        kRows == AddedRows::of_experts ? params.copies_per_token : params.group.top_k);
    const std::uint32_t slot = lane_id();
    float sum = 0;
    if (copies_ == 0) {
      sum = values_[0];
    } else {
      if (sign_[0] < 0) values_[0] = 0;
      if (sign_[1] < 0) values_[1] = 0;
      for (std::uint32_t c = 0; c < copies_; ++c) {
        const std::uint32_t number = c * top_k + slot;
        const float first = __shfl_sync(~0u, values_[0], number % 32),
                    second = __shfl_sync(~0u, values_[1], number % 32);
        sum = numeric::add(sum, number < 32 ? first : second);
      }
    }
    if (slot < top_k) params.out_weights[static_cast<std::int64_t>(token_) * top_k + slot] = sum;
    token_ = kNoToken;
  }

 private:
  static constexpr std::uint32_t kNoToken = ~0u;

  /// Weight number n of a token is that of slot n % top_k of copy n / top_k; lane l has numbers l
  /// and 32 + l. Nothing here depends on a loaded value.
  template <int kHalf>
  __device__ void load_half(const NormalCombine& params, const CombineSources& sources,
                            const TokenCopy<kRows>& copy, std::int32_t row_of_slot) {
    const auto top_k = static_cast<std::uint32_t>(params.group.top_k);
    const std::uint32_t number = kHalf * 32 + lane_id(), c = number / top_k,
                        slot = number - c * top_k;
    const TokenCopy<kRows> from = copy.of_lane(c % 32);
    const std::int32_t added = __shfl_sync(~0u, row_of_slot, slot);
    if (c >= copies_) return;
    const CombineStaging& staging = params.staging;
    if (from.rank() != params.group.me || staging.weights == nullptr) {
      values_[kHalf] = ptx::ld_relaxed_sys_global(
          reinterpret_cast<const float*>(weights_of(sources, from)) + slot);
    } else if constexpr (kRows == AddedRows::of_ranks_summed) {
      if (added >= 0 && added < staging.row_count) values_[kHalf] = staging.weights[added];
    } else {
      const std::int64_t row = sources.first_local_row + from.row();
      values_[kHalf] = staging.weights[row * staging.weight_stride + slot];
      if (staging.topk_idx != nullptr)  // the upper word: a slot below 0 counts as 0
        sign_[kHalf] =
            reinterpret_cast<const std::int32_t*>(staging.topk_idx + row * top_k + slot)[1];
    }
  }

  std::uint32_t token_ = kNoToken;
  std::uint32_t copies_ = 0;  ///< 0: values_[0] of lane k is the sum of top-k slot k
  float values_[2];
  std::int32_t sign_[2];
};

}  // namespace
}  // namespace shoal::ep::cuda
