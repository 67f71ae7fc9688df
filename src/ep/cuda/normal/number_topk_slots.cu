// SPDX-License-Identifier: Apache-2.0
// number_topk_slots.cu: for each top-k slot, the index of its token among the tokens of its expert.
// Once per routing, before its first expert-major dispatch.
//
// Moves: every block reads all indices twice (tokens * top_k * 8 B, from the second-level cache)
// and writes 4 B for each slot of its experts. A block takes kExpertsNumbered experts; each warp
// counts the tokens of its share, then numbers them. Waits for nothing and publishes nothing: the
// dispatch follows on the stream.
#include "ep/cuda/device/group.cuh"
#include "ep/cuda/normal/device/kernels.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr std::int32_t kWarps = kThreads / 32;
/// Experts that a block numbers: each block reads all indices twice, and each warp has a counter
/// for each expert in shared memory.
constexpr std::int32_t kExpertsNumbered = 8;

/// Calls visit(i, expert) for the indices from `first` to `end`, 32 at a time, in order. `expert`
/// counts from the block's first expert; -1: another block's. All threads of the warp call.
template <class Visit>
__device__ void for_topk_slots(const NormalNumberTopkSlots& params, std::int64_t first,
                               std::int64_t end, Visit&& visit) {
  constexpr int kBatch = 8;  // loads in flight
  const std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * kExpertsNumbered;
  for (std::int64_t i = first + lane_id(); i < end + lane_id(); i += 32 * kBatch) {
    std::int64_t experts[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      experts[b] = i + 32 * b < end ? params.topk_idx[i + 32 * b] - base : -1;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const bool mine = experts[b] >= 0 && experts[b] < kExpertsNumbered;
      visit(i + 32 * b, mine ? static_cast<std::int32_t>(experts[b]) : -1);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    number_topk_slots_kernel(const __grid_constant__ NormalNumberTopkSlots params) {
  __shared__ std::int32_t seen[kWarps][kExpertsNumbered];  // tokens of each expert so far
  const std::int32_t warp = static_cast<std::int32_t>(threadIdx.x / 32);
  const std::int64_t indices = static_cast<std::int64_t>(params.tokens) * params.top_k;
  const std::int64_t share = (indices + kThreads - 1) / kThreads * 32;
  const std::int64_t first = min(warp * share, indices), end = min(first + share, indices);
  for (std::int32_t i = threadIdx.x; i < kWarps * kExpertsNumbered; i += kThreads)
    (&seen[0][0])[i] = 0;
  __syncthreads();
  for_topk_slots(params, first, end, [&](std::int64_t, std::int32_t expert) {
    if (expert >= 0) atomicAdd(&seen[warp][expert], 1);
  });
  __syncthreads();
  if (threadIdx.x < kExpertsNumbered) {
    std::int32_t before = 0;
    for (std::int32_t w = 0; w < kWarps; ++w) {
      const std::int32_t count = seen[w][threadIdx.x];
      seen[w][threadIdx.x] = before;
      before += count;
    }
  }
  __syncthreads();
  for_topk_slots(params, first, end, [&](std::int64_t i, std::int32_t expert) {
    if (__ballot_sync(~0u, expert >= 0) == 0) return;
    const std::uint32_t peers = __match_any_sync(~0u, expert);
    const std::int32_t before = __popc(peers & ((1u << lane_id()) - 1)), count = __popc(peers);
    if (expert >= 0) params.expert_row_indices[i] = seen[warp][expert] + before;
    __syncwarp();
    if (expert >= 0 && before == count - 1) seen[warp][expert] += count;
    __syncwarp();
  });
}

}  // namespace

void launch_normal_number_topk_slots(const NormalNumberTopkSlots& params, cudaStream_t stream) {
  const std::int32_t blocks = (params.experts + kExpertsNumbered - 1) / kExpertsNumbered;
  number_topk_slots_kernel<<<blocks, kThreads, 0, stream>>>(params);
}

void preload_normal_number_topk_slots() {
  cudaFuncAttributes attributes;
  (void)cudaFuncGetAttributes(&attributes, number_topk_slots_kernel);
}

}  // namespace shoal::ep::cuda
