// SPDX-License-Identifier: Apache-2.0
// topk_slots.cuh: the top-k slots of a token, one for each lane of a warp, and which rank each of
// them goes to.
#pragma once

#include "ep/cuda/low_latency/device/places.cuh"

namespace shoal::ep::cuda {

/// An expert as a handle holds it; -1 where the handle was never written because the group had
/// failed.
__device__ inline std::int32_t known_expert(const DeviceGroup& group, std::int32_t expert) {
  return expert < group.experts ? expert : -1;
}

/// The top-k slot whose number is the lane's.
struct TopkSlot {
  std::int32_t expert, rank;   ///< the expert and its rank; -1: none
  bool last;                   ///< no later slot of the token goes to the same rank
  std::int32_t index_of_rank;  ///< number of the slot among those of its rank
  std::uint32_t lasts;         ///< of the warp: lanes with `last`
};

/// All lanes of the warp call.
__device__ inline TopkSlot make_topk_slot(std::int32_t expert, std::int32_t local_experts) {
  const std::uint32_t me = lane_id();
  TopkSlot slot;
  slot.expert = expert;
  slot.rank = expert >= 0 ? expert / local_experts : -1;
  const std::uint32_t same = __match_any_sync(kWarp, slot.rank);
  slot.last = expert >= 0 && same >> me == 1;
  slot.lasts = __ballot_sync(kWarp, slot.last);
  slot.index_of_rank = __popc(same & ((1u << me) - 1));
  return slot;
}

}  // namespace shoal::ep::cuda
