// SPDX-License-Identifier: Apache-2.0
// gate.cu: group-limited gating, with the bits of the host (ep/api/gate.cpp).
//
// Moves: reads tokens * experts * 4 B of logits once, writes 12 B for each top-k slot. A warp
// carries a token; lane i has the experts i, i + 32, ... Nothing waits and nothing is published:
// the arrays follow on the stream.
//
// The float64 operations are those of ep/numeric/gate.hpp in the same order, so scores, choices and
// weights are those of the host. Choices compare integers that order as the scores do.
#include "ep/cuda/gate/gate.cuh"

#include <algorithm>

#include "ep/cuda/device/slots.cuh"
#include "ep/numeric/gate.hpp"
#include "shoal/device/ptx.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr std::int32_t kMostWarps = 8;
constexpr std::int64_t kMostBlocks = 1 << 16;
constexpr std::size_t kSharedBytes = 48 << 10;  ///< what a block has without asking for more

constexpr std::size_t bytes_of_warp(std::int32_t experts, std::int32_t groups) {
  return static_cast<std::size_t>(2 * experts + groups) * sizeof(float);
}

/// The best of the keys that a lane owns: those of index lane, lane + 32, ...
struct LaneBest {
  std::uint32_t key = 0;
  std::int32_t index = 0;

  __device__ void find(const std::uint32_t* keys, std::int32_t count) {
    key = 0;
    for (auto i = static_cast<std::int32_t>(lane_id()); i < count; i += 32)
      if (keys[i] > key) {
        key = keys[i];
        index = i;
      }
  }
};

/// The index of the largest key, the lowest among equals, which becomes 0. All lanes call.
__device__ std::int32_t take_best(LaneBest& best, std::uint32_t* keys, std::int32_t count) {
  const std::uint32_t most = __reduce_max_sync(~0u, best.key);
  const std::uint32_t lowest =
      __reduce_max_sync(~0u, best.key == most ? ~static_cast<std::uint32_t>(best.index) : 0u);
  const auto taken = static_cast<std::int32_t>(~lowest);
  if (taken % 32 == static_cast<std::int32_t>(lane_id())) {
    keys[taken] = 0;
    best.find(keys, count);
  }
  return taken;
}

/// The gate of one token, by one warp. kPerLane: as in slots.cuh, of top-k slots.
template <int kPerLane>
class TokenGate {
 public:
  __device__ TokenGate(const Gate& call, std::byte* shared)
      : call_(call),
        lane_(static_cast<std::int32_t>(lane_id())),
        scores_(reinterpret_cast<float*>(shared)),
        keys_(reinterpret_cast<std::uint32_t*>(scores_ + call.experts)),
        group_keys_(keys_ + call.experts) {}

  __device__ void run(std::int64_t token) {
    __syncwarp();  // the token before has been read
    const bool valid = load(call_.logits + token * call_.experts);
    if (valid) {
      if (call_.softmax)
        compute_softmax();
      else
        compute_sigmoid();
      select();
      __syncwarp();
      if (call_.groups_kept != call_.groups) keep_groups();
    }
    write(token, valid);
  }

 private:
  template <class Visit>
  __device__ void for_experts(Visit&& visit) {
    for (std::int32_t e = lane_; e < call_.experts; e += 32) visit(e);
  }

  /// False for a token with a NaN or +infinity.
  __device__ bool load(const float* logits) {
    bool valid = true;
    for_experts([&](std::int32_t e) {
      const float logit = logits[e];
      scores_[e] = logit;
      valid = valid && logit < numeric::float_of(numeric::kInfinityBits);
    });
    return __all_sync(~0u, valid ? 1 : 0) != 0;
  }

  __device__ void compute_sigmoid() {
    for_experts([&](std::int32_t e) {
      scores_[e] = numeric::sigmoid(numeric::exp(numeric::sigmoid_exponent(scores_[e])));
    });
  }

  __device__ void compute_softmax() {
    std::uint32_t key = 0;
    for_experts([&](std::int32_t e) { key = max(key, numeric::order_key(scores_[e])); });
    const float found = numeric::value_of_key(__reduce_max_sync(~0u, key));
    const float largest = found < -3.4028235e38f ? 0.0f : found;  // all masked: every score is 0
    const auto term = [&](std::int32_t e) {
      return numeric::exp(numeric::softmax_exponent(scores_[e], largest));
    };
    double sum = 0;
    for_experts([&](std::int32_t e) { sum = numeric::add(sum, term(e)); });
    for (unsigned distance = 16; distance > 0; distance /= 2)
      sum = numeric::add(sum, __shfl_xor_sync(~0u, sum, distance));
    for_experts([&](std::int32_t e) { scores_[e] = numeric::softmax(term(e), sum); });
  }

  __device__ void select() {
    for_experts([&](std::int32_t e) {
      const float selection =
          call_.bias != nullptr ? numeric::add(scores_[e], call_.bias[e]) : scores_[e];
      keys_[e] = numeric::order_key(selection);
    });
  }

  /// Excludes the experts of the groups that are not kept.
  __device__ void keep_groups() {
    const std::int32_t size = call_.experts / call_.groups;
    for (std::int32_t g = lane_; g < call_.groups; g += 32) group_keys_[g] = key_of_group(g, size);
    __syncwarp();
    LaneBest best;
    best.find(group_keys_, call_.groups);
    for (std::int32_t kept = 0; kept < call_.groups_kept; ++kept)
      take_best(best, group_keys_, call_.groups);
    __syncwarp();
    // A group that was taken has the key 0.
    for_experts([&](std::int32_t e) {
      if (group_keys_[e / size] != 0) keys_[e] = 0;
    });
  }

  /// Key of the sum of a group's two best selections.
  __device__ std::uint32_t key_of_group(std::int32_t group, std::int32_t size) const {
    const std::uint32_t* const keys = keys_ + group * size;
    std::uint32_t best = 0, second = 0;
    std::int32_t at = lane_ % size;  // lanes begin at different banks
    for (std::int32_t i = 0; i < size; ++i) {
      const std::uint32_t key = keys[at];
      second = max(second, min(best, key));
      best = max(best, key);
      at = at + 1 == size ? 0 : at + 1;
    }
    if (size == 1) return best;
    return numeric::order_key(
        numeric::add(numeric::value_of_key(best), numeric::value_of_key(second)));
  }

  __device__ void write(std::int64_t token, bool valid) {
    std::int64_t expert[kPerLane];
    float chosen[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) expert[i] = -1, chosen[i] = 0;
    double factor = 0;
    if (valid) {
      LaneBest best;
      best.find(keys_, call_.experts);
      for (std::int32_t k = 0; k < call_.top_k; ++k) {
        const std::int32_t taken = take_best(best, keys_, call_.experts);
#pragma unroll
        for (int i = 0; i < kPerLane; ++i)
          if (k == 32 * i + lane_) expert[i] = taken;
      }
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) chosen[i] = expert[i] < 0 ? 0.0f : scores_[expert[i]];
      double sum = 0;
      for (std::int32_t k = 0; k < call_.top_k; ++k)
        sum =
            numeric::add(sum, static_cast<double>(value_of(chosen, static_cast<std::uint32_t>(k))));
      factor = numeric::weight_factor(call_.normalize, call_.scaling, sum);
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (32 * i + lane_ >= call_.top_k) return;
      const std::int64_t at = token * call_.top_k + 32 * i + lane_;
      call_.topk_idx[at] = expert[i];
      call_.topk_weights[at] =
          valid ? numeric::weight(chosen[i], factor) : numeric::float_of(numeric::kQuietNanBits);
    }
  }

  const Gate& call_;
  const std::int32_t lane_;
  float* const scores_;
  std::uint32_t *const keys_, *const group_keys_;
};

template <int kPerLane>
__global__ void __launch_bounds__(kMostWarps * 32) gate_kernel(const __grid_constant__ Gate call) {
  const auto warp = static_cast<std::int64_t>(threadIdx.x / 32);
  const auto warps = static_cast<std::int64_t>(blockDim.x / 32);
  TokenGate<kPerLane> gate(
      call, ptx::dynamic_shared() +
                static_cast<std::size_t>(warp) * bytes_of_warp(call.experts, call.groups));
  for (std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * warps + warp;
       token < call.tokens; token += static_cast<std::int64_t>(gridDim.x) * warps)
    gate.run(token);
}

}  // namespace

cudaError_t launch_gate(const Gate& call, cudaStream_t stream) {
  if (call.experts > Gate::kMostExperts) return cudaErrorInvalidValue;
  if (call.tokens == 0) return cudaSuccess;
  const std::size_t bytes = bytes_of_warp(call.experts, call.groups);
  const auto warps =
      std::min(static_cast<std::int64_t>(kSharedBytes / bytes), std::int64_t{kMostWarps});
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(std::min((call.tokens + warps - 1) / warps, kMostBlocks)));
  config.blockDim = dim3(static_cast<unsigned>(warps * 32));
  config.dynamicSmemBytes = static_cast<std::size_t>(warps) * bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(
      &config, call.top_k <= kOnePerLane ? gate_kernel<1> : gate_kernel<kMostPerLane>, call);
}

}  // namespace shoal::ep::cuda
