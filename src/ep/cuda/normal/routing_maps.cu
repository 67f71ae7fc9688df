// SPDX-License-Identifier: Apache-2.0
// routing_maps.cu: forms of a routing that programs of deep_ep use, for calls that have no group
// yet or no place for another form.
//
// Moves: count_tokens reads tokens * top_k indices and writes a byte for each (token, rank), in one
// block, whose counters need no clearing before. The others read or write the map once, a token a
// warp: tokens * experts bytes of a routing map, four times as much of probabilities. Nothing waits
// and nothing is published: other kernels follow on the stream.
#include <algorithm>

#include "ep/cuda/device/group.cuh"
#include "ep/cuda/normal/routing_maps.hpp"
#include "ep/plan/partition.hpp"

namespace shoal::ep::cuda {
namespace {

constexpr std::int32_t kThreads = 256, kWarps = kThreads / 32;
constexpr std::int32_t kBlocks = 1024;  ///< of a warp for each token; enough for any GPU
constexpr std::int32_t kCountThreads = 1024;

__device__ std::int64_t index_at(const CountTokens& call, std::int64_t at) {
  return call.is_int64 ? static_cast<const std::int64_t*>(call.topk_idx)[at]
                       : static_cast<const std::int32_t*>(call.topk_idx)[at];
}

/// One thread counts a token.
__device__ void count_token(const CountTokens& call, std::int32_t token, std::int32_t* per_rank,
                            std::int32_t* per_expert, const std::uint8_t* rank_of) {
  constexpr std::int32_t kWords = CountTokens::kMostRanks / 32;
  std::uint32_t seen[kWords] = {};
  for (std::int32_t slot = 0; slot < call.top_k; ++slot) {
    const std::int64_t expert = index_at(call, std::int64_t{token} * call.top_k + slot);
    if (expert < 0 || expert >= call.experts) continue;
    atomicAdd(&per_expert[expert], 1);
    const std::int32_t rank = rank_of[expert];
    seen[rank / 32] |= 1u << rank % 32;
  }
  for (std::int32_t rank = 0; rank < call.ranks; ++rank) {
    const std::uint32_t goes = seen[rank / 32] >> rank % 32 & 1u;
    if (goes != 0) atomicAdd(&per_rank[rank], 1);
    call.in_rank[std::int64_t{token} * call.ranks + rank] = static_cast<std::uint8_t>(goes);
  }
}

__global__ void __launch_bounds__(kCountThreads, 1)
    count_tokens_kernel(const __grid_constant__ CountTokens call) {
  __shared__ std::int32_t per_rank[CountTokens::kMostRanks], per_expert[CountTokens::kMostExperts];
  __shared__ std::uint8_t rank_of[CountTokens::kMostExperts];
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  for (std::int32_t i = thread; i < call.ranks; i += kCountThreads) per_rank[i] = 0;
  for (std::int32_t i = thread; i < call.experts; i += kCountThreads) per_expert[i] = 0;
  for (std::int32_t rank = thread / 32; rank < call.ranks; rank += kCountThreads / 32)
    for (std::int32_t i = call.first_expert[rank] + thread % 32; i < call.first_expert[rank + 1];
         i += 32)
      rank_of[i] = static_cast<std::uint8_t>(rank);
  __syncthreads();
  for (std::int32_t token = thread; token < call.tokens; token += kCountThreads)
    count_token(call, token, per_rank, per_expert, rank_of);
  __syncthreads();
  for (std::int32_t i = thread; i < call.ranks; i += kCountThreads) call.per_rank[i] = per_rank[i];
  for (std::int32_t i = thread; i < call.experts; i += kCountThreads)
    call.per_expert[i] = per_expert[i];
}

/// Calls visit(token) for the tokens of this warp. All its threads call.
template <class Visit>
__device__ void for_tokens(std::int32_t tokens, Visit&& visit) {
  for (std::int32_t token = static_cast<std::int32_t>(blockIdx.x) * kWarps +
                            static_cast<std::int32_t>(threadIdx.x / 32);
       token < tokens; token += static_cast<std::int32_t>(gridDim.x) * kWarps)
    visit(token);
}

__global__ void __launch_bounds__(kThreads)
    topk_of_map_kernel(const __grid_constant__ TopkOfMap call) {
  const auto lane = static_cast<std::int32_t>(lane_id());
  for_tokens(call.tokens, [&](std::int32_t token) {
    const std::int64_t row = std::int64_t{token} * call.experts;
    const std::int64_t out = std::int64_t{token} * call.top_k;
    std::int32_t found = 0;
    for (std::int32_t first = 0; first < call.experts; first += 32) {
      const std::int32_t expert = first + lane;
      const bool chosen = expert < call.experts && call.map[row + expert] != 0;
      const std::uint32_t all = __ballot_sync(~0u, chosen ? 1 : 0);
      const std::int32_t slot = found + __popc(all & ((1u << lane) - 1));
      if (chosen && slot < call.top_k) {
        call.topk_idx[out + slot] = expert;
        if (call.probs != nullptr) call.weights[out + slot] = call.probs[row + expert];
      }
      found += __popc(all);
    }
    for (std::int32_t slot = found + lane; slot < call.top_k; slot += 32) {
      call.topk_idx[out + slot] = -1;
      if (call.probs != nullptr) call.weights[out + slot] = 0;
    }
    if (lane == 0 && call.most != nullptr && found > *call.most) atomicMax(call.most, found);
  });
}

__global__ void __launch_bounds__(kThreads)
    map_of_topk_kernel(const __grid_constant__ MapOfTopk call) {
  const auto lane = static_cast<std::int32_t>(lane_id());
  for_tokens(call.tokens, [&](std::int32_t token) {
    float* const row = call.map + std::int64_t{token} * call.columns;
    for (std::int32_t column = lane; column < call.columns; column += 32) row[column] = 0;
    __syncwarp();
    for (std::int32_t slot = lane; slot < call.top_k; slot += 32) {
      const std::int64_t at = std::int64_t{token} * call.top_k + slot;
      const std::int64_t column = call.topk_idx[at] + call.first;
      if (call.topk_idx[at] >= 0 && column < call.columns) row[column] = call.values[at];
    }
  });
}

__global__ void __launch_bounds__(kThreads)
    fitting_rows_kernel(const __grid_constant__ FittingRows call) {
  const auto end_of = [&](std::int32_t expert) {
    return expert < 0 ? 0 : min(std::int64_t{call.expert_ends[expert]}, call.room);
  };
  for (auto expert = static_cast<std::int32_t>(threadIdx.x); expert < call.experts;
       expert += kThreads)
    call.rows[expert] = end_of(expert) - end_of(expert - 1);
  if (threadIdx.x == 0)  // a rank may hold no experts
    *call.overflow = call.experts > 0 && call.expert_ends[call.experts - 1] > call.room ? 1 : 0;
}

template <class Call>
cudaError_t launch(void (*kernel)(Call), const Call& call, std::int32_t blocks,
                   std::int32_t threads, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, call);
}

std::int32_t blocks_of(std::int32_t tokens) {
  return std::clamp((tokens + kWarps - 1) / kWarps, 1, kBlocks);
}

}  // namespace

cudaError_t launch_count_tokens(CountTokens call, cudaStream_t stream) {
  if (call.ranks > CountTokens::kMostRanks || call.experts > CountTokens::kMostExperts)
    return cudaErrorInvalidValue;
  const detail::Partition partition(call.experts, call.ranks, {});
  std::ranges::copy(partition.firsts(), call.first_expert);
  return launch(count_tokens_kernel, call, 1, kCountThreads, stream);
}

cudaError_t launch_topk_of_map(const TopkOfMap& call, cudaStream_t stream) {
  return launch(topk_of_map_kernel, call, blocks_of(call.tokens), kThreads, stream);
}

cudaError_t launch_map_of_topk(const MapOfTopk& call, cudaStream_t stream) {
  return launch(map_of_topk_kernel, call, blocks_of(call.tokens), kThreads, stream);
}

cudaError_t launch_fitting_rows(const FittingRows& call, cudaStream_t stream) {
  return launch(fitting_rows_kernel, call, 1, kThreads, stream);
}

}  // namespace shoal::ep::cuda
