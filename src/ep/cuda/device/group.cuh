// SPDX-License-Identifier: Apache-2.0
// group.cuh: a group as its kernels see it: the kernel parameter DeviceGroup, and the memory in
// which the kernels keep epochs and counters between launches.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "ep/cuda/device/experts.cuh"
#include "ep/cuda/layout/device_layout.hpp"

namespace shoal::ep::cuda {

using detail::kLine;
using detail::kMaxDeviceRanks;

struct FaultReport;
struct KernelRecord;

/// Kernels that number their blocks. Launches of one kind run one after another, and each kind has
/// counters of its own because a receive can overlap its send.
enum class KernelKind : std::uint32_t {
  normal,  ///< dispatch and combine
  low_latency_dispatch_send,
  low_latency_dispatch_receive,
  low_latency_combine_send,
  low_latency_combine_receive,
  count
};

/// Counters that the blocks of one launch share. They have a cache line of their own: all blocks
/// add to it at the same time, and loads of other data on the line would have to wait.
struct alignas(128) Counters {
  std::uint32_t ticket;  ///< blocks that have started
  std::uint32_t done;    ///< blocks that have ended
  std::uint32_t work;    ///< items handed out, see take_work
  std::uint32_t staged;  ///< pieces of expert output handed out (normal/staged_pieces.cuh)
};

struct DeviceGroup;

/// State in device memory that the kernels of a group keep between launches. Epochs advance on the
/// device, so that a captured graph can be replayed.
struct GroupMemory {
  std::uint64_t epoch;                                 ///< of the last normal operation
  std::uint64_t dispatches_sent, dispatches_received;  ///< epochs of low-latency dispatches
  std::uint64_t combines_sent, combines_received;      ///< epochs of low-latency combines
  /// Blocks of each rank for which earlier normal operations have waited.
  std::uint64_t finished[kMaxDeviceRanks];
  std::uint32_t aborted;  ///< 1: the group has failed and kernels end at once; 2: see report_fault
  /// Low latency, by parity of the epoch: the operation on which ranks did not agree, so that the
  /// half may hold rows that no rank has read; 0: none.
  std::uint64_t dirty_dispatch[2], dirty_combine[2];
  Counters counters[static_cast<std::uint32_t>(KernelKind::count)];
  std::uint32_t masked[kMaxDeviceRanks];  ///< not 0: masked in low-latency operations
  /// Between nodes, where each mode has memory of its own: the group of the other mode, by which
  /// waits find ranks that are in it; nullptr: they do not.
  const DeviceGroup* other_mode;
};

/// A group, passed to kernels by value.
struct DeviceGroup {
  detail::DeviceLayout layout;
  GroupMemory* memory;
  FaultReport* report;
  KernelRecord* record;  ///< nullptr: kernels count nothing
  ExpertTable expert_table;
  std::uint64_t timeout_ns;
  std::int32_t ranks, me;
  std::int32_t experts, top_k;
  std::int32_t local_experts;                  ///< the most of any rank, which sizes arrays
  std::int32_t own_experts, own_first_expert;  ///< those of this rank
  std::uint32_t mask_failed;                   ///< GroupOptions.mask_failed
  /// 1: waits of low-latency mode find ranks that are in normal mode (is_in_normal_mode).
  std::uint32_t finds_other_mode;
  std::int32_t none_expert;  ///< GroupOptions.none_expert
  /// Every rank's block of the heap, as mapped here. Behind the others, because a launch finds no
  /// parameter in a cache, and of these it reads few.
  std::byte* block[kMaxDeviceRanks];
};

/// Sets the experts of the group, and of rank `me` in it. `words`: expert_table_words.
inline void set_experts(DeviceGroup& group, const detail::Partition& partition, std::int32_t me,
                        const std::int32_t* words) {
  group.experts = partition.firsts().back();
  group.local_experts = partition.largest();
  group.own_experts = partition.count(me);
  group.own_first_expert = partition.first(me);
  group.expert_table = ExpertTable::at(words, group.experts);
}

/// True if its kernels count. Kernels whose time counts are compiled with and without.
inline bool counts(const DeviceGroup& group) {
  return group.record != nullptr;
}

#ifdef __CUDACC__

__device__ inline std::uint32_t lane_id() {
  return threadIdx.x % 32;
}

#endif

}  // namespace shoal::ep::cuda
