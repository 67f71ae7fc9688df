// SPDX-License-Identifier: Apache-2.0
// expand.cu: rank-major rows of a dispatch in expert-major order, a copy for each top-k slot.
//
// Moves: each row is read once and written for each of its slots with an expert here, 2 KiB a warp
// and step; weights and scales likewise. A block takes consecutive rows. To number their slots, it
// first counts those of all rows before its own, from the second-level cache, so that blocks do not
// wait for each other: 8 bytes a slot, little compared with the rows. Waits for nothing and
// publishes nothing: it follows the dispatch on the stream.
//
// The shared memory holds the next row of each expert.
#include "ep/cuda/device/group.cuh"
#include "ep/cuda/normal/device/kernels.cuh"
#include "shoal/device/ptx.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr std::int32_t kWarps = kThreads / 32;
constexpr int kBatch = 8;                     ///< indices that a thread has in flight
constexpr std::uint32_t kParts = 4;           ///< vectors of a row that a lane has in flight
constexpr std::uint32_t kStep = 32 * kParts;  ///< vectors of a step of a warp

__device__ std::int32_t start_of(const NormalExpand& params, std::int32_t expert) {
  return expert == 0 ? 0 : params.expert_ends[expert - 1];
}

/// The copy of a slot of a row, or -1. With `numbered` the caller gives it.
__device__ std::int32_t copy_of_slot(const NormalExpand& params, std::int64_t row,
                                     std::uint32_t slot) {
  if (slot >= static_cast<std::uint32_t>(params.top_k)) return -1;
  const std::int32_t copy = params.topk_rows[row * params.top_k + slot];
  return copy < params.out_rows ? copy : -1;
}

/// The expert of index `i`, or -1.
__device__ std::int32_t expert_of(const NormalExpand& params, std::int64_t i, std::int64_t end) {
  const std::int64_t expert = i < end ? params.topk_idx[i] : -1;
  return expert >= 0 && expert < params.experts ? static_cast<std::int32_t>(expert) : -1;
}

/// Sets next[e] to the copy of the first slot of expert e from index `first` on.
__device__ void count_before(const NormalExpand& params, std::int64_t first, std::int32_t* next) {
  for (std::int32_t e = threadIdx.x; e < params.experts; e += kThreads)
    next[e] = start_of(params, e);
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < first; i += kThreads * kBatch) {
    std::int32_t experts[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) experts[b] = expert_of(params, i + b * kThreads, first);
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      if (experts[b] >= 0) atomicAdd(&next[experts[b]], 1);
  }
  __syncthreads();
}

/// One warp numbers the slots from index `first` to `end`, in order.
__device__ void number_slots(const NormalExpand& params, std::int64_t first, std::int64_t end,
                             std::int32_t* next) {
  for (std::int64_t base = first; base < end; base += 32 * kBatch) {
    std::int32_t experts[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) experts[b] = expert_of(params, base + 32 * b + lane_id(), end);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const std::int64_t i = base + 32 * b + lane_id();
      const std::uint32_t peers = __match_any_sync(~0u, experts[b]);
      const std::int32_t before = __popc(peers & ((1u << lane_id()) - 1));
      std::int32_t row = -1;
      if (experts[b] >= 0) row = next[experts[b]] + before;
      __syncwarp();
      if (experts[b] >= 0 && before == __popc(peers) - 1) next[experts[b]] = row + 1;
      __syncwarp();
      if (i < end) params.topk_rows[i] = row < params.out_rows ? row : -1;
    }
  }
}

/// One warp copies kStep vectors of a row from vector `first` on, and with the first ones weights
/// and scales. Each lane has a slot and its copy, or -1.
__device__ void copy_part(const NormalExpand& params, std::int64_t row, std::uint32_t first,
                          std::uint32_t slot, std::int32_t row_of_slot) {
  const std::uint32_t slots = __ballot_sync(~0u, row_of_slot >= 0);
  if (slots == 0) return;
  const auto* const from = reinterpret_cast<const uint4*>(params.x) + row * params.row_vectors;
  uint4 parts[kParts];
#pragma unroll
  for (std::uint32_t j = 0; j < kParts; ++j)
    if (const std::uint32_t v = first + 32 * j + lane_id(); v < params.row_vectors)
      parts[j] = __ldcs(from + v);
  for (std::uint32_t left = slots; left != 0; left &= left - 1) {
    const std::int64_t to = __shfl_sync(~0u, row_of_slot, __ffs(left) - 1);
    auto* const out = reinterpret_cast<uint4*>(params.out) + to * params.row_vectors;
#pragma unroll
    for (std::uint32_t j = 0; j < kParts; ++j)
      if (const std::uint32_t v = first + 32 * j + lane_id(); v < params.row_vectors)
        out[v] = parts[j];
    if (first != 0 || params.scales == nullptr) continue;
    for (std::int32_t s = lane_id(); s < params.scale_count; s += 32)
      params.out_scales[params.out_places.first(to) + s * params.out_places.step] =
          params.scales[row * params.scale_stride + s];
  }
  if (first == 0 && params.weights != nullptr && row_of_slot >= 0)
    params.out_weights[row_of_slot] = params.weights[row * params.top_k + slot];
}

/// One warp clears a row without a token.
__device__ void clear_row(const NormalExpand& params, std::int64_t row) {
  if (params.out_weights != nullptr && lane_id() == 0) params.out_weights[row] = 0;
  if (params.zero_padding == 0) return;
  auto* const out = reinterpret_cast<uint4*>(params.out) + row * params.row_vectors;
  for (std::uint32_t v = lane_id(); v < params.row_vectors; v += 32) out[v] = uint4{};
  for (std::int32_t s = lane_id(); s < params.scale_count; s += 32)
    params.out_scales[params.out_places.first(row) + s * params.out_places.step] = 0;
}

/// The rows after each block of experts, and after all of them.
__device__ void clear_padding(const NormalExpand& params) {
  const auto warp = static_cast<std::int32_t>(threadIdx.x / 32);
  for (std::int32_t e = blockIdx.x; e < params.experts; e += gridDim.x) {
    const std::int32_t end = min(params.expert_ends[e], params.out_rows);
    for (std::int32_t row = max(start_of(params, e) + params.expert_counts[e], 0) + warp; row < end;
         row += kWarps)
      clear_row(params, row);
  }
  const auto first = static_cast<std::int32_t>(blockIdx.x) * kWarps + warp;
  const std::int32_t last = params.experts > 0 ? params.expert_ends[params.experts - 1] : 0;
  for (std::int64_t row = max(last, 0) + first; row < params.out_rows;
       row += static_cast<std::int64_t>(gridDim.x) * kWarps)
    clear_row(params, row);
}

/// kManySlots: a lane has more slots of a row than one.
template <bool kManySlots>
__global__ void __launch_bounds__(kThreads, 1)
    expand_kernel(const __grid_constant__ NormalExpand params) {
  auto* const next = reinterpret_cast<std::int32_t*>(ptx::dynamic_shared());
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  const auto warp = static_cast<std::int32_t>(threadIdx.x / 32);
  const std::int64_t all = params.rows;
  const std::int64_t rows =
      params.row_count == nullptr ? all : min(all, std::int64_t{max(*params.row_count, 0)});
  const std::int64_t share = (rows + gridDim.x - 1) / gridDim.x;
  const std::int64_t first = min(blockIdx.x * share, rows), end = min(first + share, rows);
  if (params.numbered == 0) {
    count_before(params, first * params.top_k, next);
    if (warp == 0) number_slots(params, first * params.top_k, end * params.top_k, next);
    // Rows that hold no token have no copies.
    for (std::int64_t i = rows * params.top_k + blockIdx.x * kThreads + threadIdx.x;
         i < all * params.top_k; i += static_cast<std::int64_t>(gridDim.x) * kThreads)
      params.topk_rows[i] = -1;
    __syncthreads();
  }
  if (blockIdx.x == 0 && params.block_ends != nullptr)
    for (std::int32_t e = threadIdx.x; e < params.experts; e += kThreads)
      params.block_ends[e] = start_of(params, e) + params.expert_counts[e];
  const std::uint32_t steps = (params.row_vectors + kStep - 1) / kStep;
  for (std::int64_t i = warp; i < (end - first) * steps; i += kWarps) {
    const std::int64_t row = first + i / steps;
    const auto step = static_cast<std::uint32_t>(i % steps);
    std::uint32_t slot = lane_id();
    do {
      copy_part(params, row, step * kStep, slot, copy_of_slot(params, row, slot));
      slot += 32;
    } while (kManySlots && slot - lane_id() < static_cast<std::uint32_t>(params.top_k));
  }
  if (params.out_weights != nullptr || params.zero_padding != 0) clear_padding(params);
}

}  // namespace

void launch_expand(const NormalExpand& params, std::int32_t blocks, bool overlap_launches,
                   cudaStream_t stream) {
  NormalPlan plan;
  plan.overlap_launches = overlap_launches;
  plan.blocks = blocks;
  plan.warps = kThreads / 32;
  plan.shared_bytes = static_cast<std::uint32_t>(params.experts * sizeof(std::int32_t));
  launch(params.top_k > kOnePerLane ? expand_kernel<true> : expand_kernel<false>, params, plan,
         stream);
}

void preload_expand(bool many_slots) {
  cudaFuncAttributes attributes;
  (void)cudaFuncGetAttributes(&attributes, many_slots ? expand_kernel<true> : expand_kernel<false>);
}

}  // namespace shoal::ep::cuda
