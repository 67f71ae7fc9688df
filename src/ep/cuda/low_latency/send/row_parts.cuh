// SPDX-License-Identifier: Apache-2.0
// row_parts.cuh: how the threads of a block divide and load the row of a token that a low-latency
// dispatch sends.
#pragma once

#include "ep/cuda/low_latency/device/kernels.cuh"
#include "shoal/device/ptx.cuh"

namespace shoal::ep::cuda::dispatch_send {

__device__ inline const std::uint16_t* row_of(const LowLatencyDispatchSend& call,
                                              std::int32_t token) {
  return call.x + static_cast<std::size_t>(token) * call.sizes.hidden;
}

/// The two vectors of 16 bytes of a row that a thread sends at a time.
struct RowPart {
  uint4 low{}, high{};
};
__device__ inline bool sends_bfloat16(const LowLatencyDispatchSend& call) {
  return call.quantize == static_cast<std::uint32_t>(Quantize::none);
}
/// Index of vector i in a thread's turn: in bfloat16 neighbouring threads have neighbouring
/// vectors, otherwise a thread has 16 neighbouring channels.
template <RowKind kRows>
__device__ std::uint32_t vector_of(const LowLatencyDispatchSend& call, std::uint32_t turn,
                                   std::uint32_t i) {
  const std::uint32_t threads = blockDim.x - 32;
  if (kRows == RowKind::wide && sends_bfloat16(call)) return (2 * turn + i) * threads + threadIdx.x;
  return 2 * (turn * threads + threadIdx.x) + i;
}
/// Loads the part, as far as the row has it; none of a token beyond the last.
template <RowKind kRows>
__device__ RowPart load_part(const LowLatencyDispatchSend& call, std::int32_t token,
                             std::uint32_t turn) {
  const auto* const row = reinterpret_cast<const uint4*>(row_of(call, token));
  const std::uint32_t vectors =
      token < call.tokens ? static_cast<std::uint32_t>(call.sizes.hidden) / 8 : 0;
  const std::uint32_t low = vector_of<kRows>(call, turn, 0), high = vector_of<kRows>(call, turn, 1);
  RowPart part;
  if (low < vectors) part.low = __ldg(row + low);
  if (high < vectors) part.high = __ldg(row + high);
  return part;
}
/// Prefetches the row. A send in a launch of its own has too few registers to load it early.
__device__ inline void prefetch_row(const LowLatencyDispatchSend& call, std::int32_t token) {
  constexpr std::uint32_t kLineChannels = 64;  // 128 bytes
  if (token >= call.tokens) return;
  for (std::uint32_t channel = threadIdx.x * kLineChannels;
       channel < static_cast<std::uint32_t>(call.sizes.hidden);
       channel += blockDim.x * kLineChannels)
    ptx::prefetch_global_l2(row_of(call, token) + channel);
}
/// Calls f(turn, part) for every turn of a thread in which its warp has channels. `part`: that of
/// the first turn.
template <RowKind kRows, typename F>
__device__ void for_parts(const LowLatencyDispatchSend& call, std::int32_t token, RowPart part,
                          F&& f) {
  const auto vectors = static_cast<std::uint32_t>(call.sizes.hidden) / 8;
  const std::uint32_t of_warp =
      lane_id() * (kRows == RowKind::wide && sends_bfloat16(call) ? 1 : 2);
#pragma unroll 1
  for (std::uint32_t turn = 0; vector_of<kRows>(call, turn, 0) - of_warp < vectors; ++turn) {
    if (turn != 0) part = load_part<kRows>(call, token, turn);
    f(turn, part);
  }
}

}  // namespace shoal::ep::cuda::dispatch_send
