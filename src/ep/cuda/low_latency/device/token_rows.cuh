// SPDX-License-Identifier: Apache-2.0
// token_rows.cuh: the combine rows of a token, and the order in which they are added.
#pragma once

#include "ep/cuda/low_latency/device/topk_slots.cuh"

namespace shoal::ep::cuda {

/// The combine rows of a token as its warps hold them: lane k has that of top-k slot k. Sums are in
/// the last slot of each rank.
struct TokenRows {
  TopkSlot slot;
  std::uint32_t arrived;   ///< top-k slots whose row has arrived or will
  std::uint32_t unsummed;  ///< with sums: those whose row is an expert output
  float weight;
  std::uint32_t row;  ///< where the row starts, in chunks of 16 bytes from the first combine row
};

/// In the order of rows: the last row of its rank.
inline constexpr std::uint32_t kEndsRank = 1u << 31;

/// The order of the sum: lane i gets the top-k slot of row i. Slots ascending, or, `by_rank`, rank
/// by rank in the order of their last slots, with kEndsRank.
__device__ inline std::uint32_t order_rows(const TokenRows& token_rows, bool by_rank) {
  std::uint32_t mine = 0, next = 0;
  for (std::uint32_t ranks = by_rank ? token_rows.slot.lasts : 1; ranks != 0; ranks &= ranks - 1) {
    const std::int32_t rank = __shfl_sync(kWarp, token_rows.slot.rank, __ffs(ranks) - 1);
    std::uint32_t left =
        __ballot_sync(kWarp, !by_rank || token_rows.slot.rank == rank) & token_rows.arrived;
    for (; left != 0; left &= left - 1, ++next)
      if (lane_id() == next)
        mine = static_cast<std::uint32_t>(__ffs(left) - 1) |
               (by_rank && (left & (left - 1)) == 0 ? kEndsRank : 0);
  }
  return mine;
}

}  // namespace shoal::ep::cuda
