// SPDX-License-Identifier: Apache-2.0
// combine_encoded.cuh: the sum of a token's encoded rows (CombineOptions::quantize).
//
// Moves, for each token: a row of each of its ranks (expert-major: of each of its experts) to
// registers, once; the sum is written to `out` once. stage_output.cu has encoded the rows before,
// those of this rank too. A warp takes a segment of a token at a time, kEncodedParts units of a
// lane. All its loads from a rank are in flight before the first value is added; without bulk
// copies that takes more SMs than bfloat16 rows need (plan_encoded_combine).
//
// Additions, in float32: biases, then rows in the order of combine.cuh, each decoded; rounded once.
#pragma once

#include "ep/cuda/normal/device/combine_sources.cuh"
#include "ep/cuda/normal/device/combine_weights.cuh"
#include "ep/cuda/normal/device/encoded_units.cuh"

namespace shoal::ep::cuda {
namespace {

template <Quantize kQuantize, AddedRows kRows, int kPerLane>
class EncodedSum {
 public:
  __device__ EncodedSum(const NormalCombine& params, std::byte*)
      : params_(params),
        hidden_(params.row_bytes / 2),
        units_(hidden_ / kUnit),
        segment_units_(params.segment_chunks * params.chunk_bytes / (2 * kUnit)) {
    take();
  }

  /// kStaged: no rank stages rows while others fetch.
  template <bool kStaged>
  __device__ void run(const CombineSources& sources, std::uint64_t) {
    for (;;) {
      const std::uint32_t number = __shfl_sync(~0u, upcoming_, 0);
      const std::uint32_t token = params_.by_segments.quotient(number);
      if (token >= static_cast<std::uint32_t>(params_.tokens)) break;
      take();
      const std::uint32_t segment = number - token * params_.by_segments.divisor;
      const TokenCopies<kRows, kPerLane> copies(params_, token);
      weights_.finish(params_);
      if (segment == 0 && params_.out_weights != nullptr) {
        if constexpr (kPerLane == 1)
          weights_.load(params_, sources, token, copies.copy[0], copies.exist.count(), -1);
        else
          write_weights(params_, sources, token, copies);
      }
      const std::byte* rows[kPerLane] = {};
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        if (copies.copy[i].exists()) rows[i] = row_of(params_, sources, copies.copy[i]);
      sum(token, segment * segment_units_, rows, copies.exist);
    }
    weights_.finish(params_);
  }

 private:
  __device__ void take() {
    if (lane_id() == 0) upcoming_ = take_work(params_.group, KernelKind::normal);
  }

  __device__ void sum(std::uint32_t token, std::uint32_t first,
                      const std::byte* const (&rows)[kPerLane],
                      const NumberSet<kPerLane>& exist) const {
    const std::int64_t start = static_cast<std::int64_t>(token) * params_.row_bytes;
    UnitSum sums[kEncodedParts];
    for (const std::byte* const bias : params_.bias) {
      if (bias == nullptr) continue;
      const auto* const vectors = reinterpret_cast<const uint4*>(bias + start);
#pragma unroll
      for (std::uint32_t i = 0; i < kEncodedParts; ++i)
        if (const std::uint32_t unit = unit_of(first, i); unit < units_)
          sums[i].add(vectors[2 * unit], vectors[2 * unit + 1]);
    }
    for (NumberSet<kPerLane> left = exist; left.any(); left = left.without_first()) {
      const std::byte* const from = value_of(rows, static_cast<std::uint32_t>(left.first()));
      EncodedUnit<kQuantize> units[kEncodedParts];
#pragma unroll
      for (std::uint32_t i = 0; i < kEncodedParts; ++i)
        if (const std::uint32_t unit = unit_of(first, i); unit < units_)
          units[i].load(from, hidden_, unit,
                        [](const auto* at) { return ptx::ld_relaxed_sys_global(at); });
#pragma unroll
      for (std::uint32_t i = 0; i < kEncodedParts; ++i)
        if (const std::uint32_t unit = unit_of(first, i); unit < units_)
          units[i].add_to(sums[i], unit);
    }
    auto* const out = reinterpret_cast<uint4*>(params_.out + start);
#pragma unroll
    for (std::uint32_t i = 0; i < kEncodedParts; ++i) {
      const std::uint32_t unit = unit_of(first, i);
      if (unit >= units_) continue;
      __stcs(out + 2 * unit, sums[i].low());
      __stcs(out + 2 * unit + 1, sums[i].high());
    }
  }
  __device__ static std::uint32_t unit_of(std::uint32_t first, std::uint32_t part) {
    return first + part * 32 + lane_id();
  }

  const NormalCombine& params_;
  const std::uint32_t hidden_, units_, segment_units_;
  std::uint32_t upcoming_ = 0;  ///< number of the item that was taken last, in lane 0
  TokenWeights<kRows> weights_;
};

}  // namespace
}  // namespace shoal::ep::cuda
