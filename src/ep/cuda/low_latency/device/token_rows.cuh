// SPDX-License-Identifier: Apache-2.0
// token_rows.cuh: the combine rows of a token, and the order in which they are added.
#pragma once

#include "ep/cuda/low_latency/device/topk_slots.cuh"

namespace shoal::ep::cuda {

/// The combine rows of a token as its warps hold them: lanes have those of their top-k slots. Sums
/// are in the last slot of each rank.
template <int kPerLane>
struct TokenRows {
  TopkSlots<kPerLane> slot;
  NumberSet<kPerLane> arrived;   ///< top-k slots whose row has arrived or will
  NumberSet<kPerLane> unsummed;  ///< with sums: those whose row is an expert output
  float weight[kPerLane];
  /// Where the rows start, in chunks of 16 bytes from the first combine row.
  std::uint32_t row[kPerLane];
};

/// In the order of rows: the last row of its rank.
inline constexpr std::uint32_t kEndsRank = 1u << 31;

/// The order of the sum: `order` gets the top-k slot of each row. Slots ascending, or, `by_rank`,
/// rank by rank in the order of their last slots, with kEndsRank.
template <int kPerLane>
__device__ void order_rows(const TokenRows<kPerLane>& token_rows, bool by_rank,
                           std::uint32_t (&order)[kPerLane]) {
  std::uint32_t next = 0;
#pragma unroll
  for (std::uint32_t& slot : order) slot = 0;
  NumberSet<kPerLane> ranks = token_rows.slot.lasts;
  if (!by_rank) ranks = NumberSet<kPerLane>::below(1);
  for (; ranks.any(); ranks = ranks.without_first()) {
    const std::int32_t rank =
        value_of(token_rows.slot.rank, static_cast<std::uint32_t>(ranks.first()));
    bool at_rank[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) at_rank[i] = !by_rank || token_rows.slot.rank[i] == rank;
    NumberSet<kPerLane> left = NumberSet<kPerLane>::vote(at_rank) & token_rows.arrived;
    for (; left.any(); left = left.without_first(), ++next)
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        if (number_of_lane(i) == next)
          order[i] = static_cast<std::uint32_t>(left.first()) |
                     (by_rank && !left.without_first().any() ? kEndsRank : 0);
  }
}

}  // namespace shoal::ep::cuda
