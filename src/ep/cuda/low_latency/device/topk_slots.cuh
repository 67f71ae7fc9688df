// SPDX-License-Identifier: Apache-2.0
// topk_slots.cuh: the top-k slots of a token, one for each lane of a warp, and which rank each of
// them goes to.
#pragma once

#include "ep/cuda/low_latency/device/places.cuh"

namespace shoal::ep::cuda {

/// A rank as a handle holds it; -1 where the handle was never written because the group had failed.
__device__ inline std::int32_t known_rank(const DeviceGroup& group, std::int32_t rank) {
  return rank < group.ranks ? rank : -1;
}

/// The top-k slot whose number is the lane's.
struct TopkSlot {
  std::int32_t rank;           ///< of its expert; negative: none
  bool last;                   ///< no later slot of the token goes to the same rank
  std::int32_t index_of_rank;  ///< number of the slot among those of its rank
  std::uint32_t lasts;         ///< of the warp: lanes with `last`
};

/// The slot whose expert is at `rank`, negative: none. All lanes of the warp call.
__device__ inline TopkSlot make_topk_slot(std::int32_t rank) {
  const std::uint32_t me = lane_id();
  TopkSlot slot;
  slot.rank = rank;
  const std::uint32_t same = __match_any_sync(kWarp, rank);
  slot.last = rank >= 0 && same >> me == 1;
  slot.lasts = __ballot_sync(kWarp, slot.last);
  slot.index_of_rank = __popc(same & ((1u << me) - 1));
  return slot;
}

}  // namespace shoal::ep::cuda
