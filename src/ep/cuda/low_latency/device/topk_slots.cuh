// SPDX-License-Identifier: Apache-2.0
// topk_slots.cuh: the top-k slots of a token as the lanes of a warp have them (slots.cuh), and the
// rank to which each of them goes.
#pragma once

#include "ep/cuda/device/slots.cuh"
#include "ep/cuda/low_latency/device/places.cuh"

namespace shoal::ep::cuda {

/// A rank as a handle holds it; -1 where the handle was never written because the group had failed.
__device__ inline std::int32_t known_rank(const DeviceGroup& group, std::int32_t rank) {
  return rank < group.ranks ? rank : -1;
}

/// The top-k slots of a lane.
template <int kPerLane>
struct TopkSlots {
  std::int32_t rank[kPerLane];           ///< of its expert; negative: none
  bool last[kPerLane];                   ///< no later slot of the token goes to the same rank
  std::int32_t index_of_rank[kPerLane];  ///< number of the slot among those of its rank
  NumberSet<kPerLane> lasts;             ///< of the warp: slots with `last`
};

/// The slots whose experts are at the ranks `rank`, negative: none. All lanes of the warp call.
template <int kPerLane>
__device__ TopkSlots<kPerLane> make_topk_slots(const std::int32_t (&rank)[kPerLane]) {
  TopkSlots<kPerLane> slots;
  NumberSet<kPerLane> same[kPerLane];
  find_same(rank, same);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const std::uint32_t slot = number_of_lane(i);
    slots.rank[i] = rank[i];
    if constexpr (kPerLane == 1)
      slots.last[i] = rank[i] >= 0 && same[i].words[0] >> slot == 1;
    else
      slots.last[i] = rank[i] >= 0 && same[i].last() == static_cast<std::int32_t>(slot);
    slots.index_of_rank[i] = static_cast<std::int32_t>(same[i].count_below(slot));
  }
  slots.lasts = NumberSet<kPerLane>::vote(slots.last);
  return slots;
}

/// The top-k slots of pair `number` of a handle whose expert is at this rank. `first` has those of
/// the pair itself.
template <int kPerLane>
__device__ NumberSet<kPerLane> slots_of_pair(const HandleView& handle, std::size_t number,
                                             std::uint32_t first) {
  NumberSet<kPerLane> slots;
  slots.words[0] = first;
#pragma unroll
  for (int w = 1; w < kPerLane; ++w)
    slots.words[w] = handle.more_slots[number * (kPerLane - 1) + static_cast<std::size_t>(w - 1)];
  return slots;
}

}  // namespace shoal::ep::cuda
