// SPDX-License-Identifier: Apache-2.0
// dispatch_token.cuh: a token of a low-latency dispatch as the warps that send it hold it, and the
// numbers of its rows.
#pragma once

#include "ep/cuda/device/faults.cuh"
#include "ep/cuda/low_latency/device/topk_slots.cuh"

namespace shoal::ep::cuda::dispatch_send {

__device__ inline std::int64_t given_expert(const LowLatencyDispatchSend& call, std::int32_t at) {
  return call.topk_is_64 != 0 ? static_cast<const std::int64_t*>(call.topk_idx)[at]
                              : static_cast<const std::int32_t*>(call.topk_idx)[at];
}

/// One token as its warps hold it: lanes have its top-k slots (slots.cuh).
template <int kPerLane>
struct LowLatencyToken {
  std::int32_t expert[kPerLane];  ///< -1: none
  std::int32_t place[kPerLane];   ///< ExpertPlace::word
  float weight[kPerLane];
  // Set by find_targets.
  TopkSlots<kPerLane> slot;
  NumberSet<kPerLane> targets;  ///< slots with `last` whose rank is not masked
};

__device__ inline void report_index(const LowLatencyDispatchSend& call, Fault fault,
                                    std::int32_t token, std::int64_t given, std::uint32_t slot) {
  report_fault(call.group, fault, Phase::low_latency_dispatch_receive, kDispatchOperation, 0, 0, 0,
               token, given, slot, false);
}

/// Sets the experts of this lane's top-k slots; -1 for an index out of range and for the second
/// mention of an expert. Reports both where `report` is set.
template <int kPerLane>
__device__ void check_experts(const LowLatencyDispatchSend& call, std::int32_t token,
                              const std::int64_t (&given)[kPerLane], bool report,
                              std::int32_t (&expert)[kPerLane]) {
  bool in_range[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    in_range[i] = given[i] >= 0 && given[i] < call.group.experts;
    expert[i] = in_range[i] ? static_cast<std::int32_t>(given[i]) : -1;
  }
  NumberSet<kPerLane> same[kPerLane];
  find_same(expert, same);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const std::uint32_t slot = number_of_lane(i);
    const bool twice = in_range[i] && same[i].has_below(slot);
    if (report && !in_range[i] && given[i] != -1 && given[i] != call.group.none_expert)
      report_index(call, Fault::bad_index, token, given[i], slot);
    if (report && twice) report_index(call, Fault::two_experts, token, given[i], slot);
    if (twice) expert[i] = -1;
  }
}

/// Places of the first experts in shared memory: a load of them from there need not wait for the
/// load of an index.
constexpr std::int32_t kSharedPlaces = 512;

/// All warps of a block load the token, so that none has to wait for another. Nothing here needs
/// the place of the expert, so that the load of it, if it is none of kSharedPlaces, is in flight
/// while the caller numbers rows.
template <int kPerLane>
__device__ LowLatencyToken<kPerLane> load_token(const LowLatencyDispatchSend& call,
                                                std::int32_t token, bool report) {
  const DeviceGroup& group = call.group;
  std::int64_t given[kPerLane];
  LowLatencyToken<kPerLane> t;
#pragma unroll
  for (int turn = 0; turn < kPerLane; ++turn) {
    const std::uint32_t slot = number_of_lane(turn);
    given[turn] = -1;
    t.weight[turn] = 0;
    t.place[turn] = ExpertPlace().word;
    if (token < call.tokens && slot < static_cast<std::uint32_t>(group.top_k)) {
      const std::int32_t i = token * group.top_k + static_cast<std::int32_t>(slot);
      given[turn] = given_expert(call, i);
      if (call.weights != nullptr) t.weight[turn] = call.weights[i];
    }
  }
  check_experts(call, token, given, report, t.expert);
#pragma unroll
  for (int turn = 0; turn < kPerLane; ++turn)
    if (t.expert[turn] >= kSharedPlaces)
      t.place[turn] = group.expert_table.place(t.expert[turn]).word;
  t.targets = {};
  return t;
}

/// A warp calls, for a token that it has loaded.
template <int kPerLane>
__device__ void find_targets(LowLatencyToken<kPerLane>& t, const std::int32_t* places,
                             const bool* masked) {
  std::int32_t rank[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (t.expert[i] >= 0 && t.expert[i] < kSharedPlaces) t.place[i] = places[t.expert[i]];
    rank[i] = ExpertPlace{t.place[i]}.rank();
  }
  t.slot = make_topk_slots(rank);
  bool wanted[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) wanted[i] = t.slot.last[i] && !masked[t.slot.rank[i]];
  t.targets = NumberSet<kPerLane>::vote(wanted);
}

/// True if index `at` of all tokens is the first mention of its expert by its token.
__device__ inline bool is_first(const LowLatencyDispatchSend& call, std::int32_t at,
                                std::int64_t expert) {
#pragma unroll 1
  for (std::int32_t i = at / call.group.top_k * call.group.top_k; i < at; ++i)
    if (given_expert(call, i) == expert) return false;
  return true;
}

/// The expert at index `at` of the tokens before `token`; -1 beyond them.
__device__ inline std::int64_t earlier_expert(const LowLatencyDispatchSend& call,
                                              std::int32_t token, std::int32_t at) {
  return at < min(token, call.tokens) * call.group.top_k ? given_expert(call, at) : -1;
}

/// Adds to numbers[k] how many earlier tokens name the expert of top-k slot k. The threads of a
/// block that send rows, `threads` of them, call with the earlier_expert() of their number.
template <int kPerLane>
__device__ void number_rows(const LowLatencyDispatchSend& call, std::int32_t token,
                            const std::int32_t (&of_lane)[kPerLane], std::uint32_t threads,
                            std::int64_t given, std::uint32_t* numbers) {
  const std::int32_t count = min(token, call.tokens) * call.group.top_k;
  std::uint32_t mine[kPerLane] = {};
#pragma unroll 1
  for (std::int32_t first = static_cast<std::int32_t>(threadIdx.x / 32 * 32); first < count;
       first += static_cast<std::int32_t>(threads)) {
    const std::int32_t at = first + static_cast<std::int32_t>(lane_id());
#pragma unroll 1
    for (std::int32_t k = 0; k < call.group.top_k; ++k) {
      const std::int32_t expert = value_of(of_lane, static_cast<std::uint32_t>(k));
      const std::uint32_t same =
          __ballot_sync(kWarp, expert >= 0 && given == expert && is_first(call, at, given));
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        if (number_of_lane(i) == static_cast<std::uint32_t>(k)) mine[i] += __popc(same);
    }
    given = earlier_expert(call, token, at + static_cast<std::int32_t>(threads));
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (mine[i] != 0) atomicAdd(numbers + number_of_lane(i), mine[i]);
}

}  // namespace shoal::ep::cuda::dispatch_send
