// SPDX-License-Identifier: Apache-2.0
// notices.cuh: how the ranks of a normal operation agree on it at its start, and end it together.
//
// Every rank writes a notice (detail::DeviceNotice), for a dispatch with counts after it, to every
// rank and raises `entered`. All ranks then see the same notices and decide alike whether the
// operation takes place. At the end every block adds 1 to `finished` at every rank.
//
// Memory order: both signals are releases at system scope, awaited by acquires. Bulk stores of a
// block are complete (bulk_wait_all) before the block adds to `finished`.
#pragma once

#include "ep/cuda/device/signals.cuh"
#include "ep/cuda/device/tickets.cuh"
#include "ep/cuda/normal/device/kernels.cuh"
#include "ep/numeric/scale.hpp"

namespace shoal::ep::cuda {

/// Number `i` of the counts of experts for rank `to`: its own experts, or all. The counts of ranks
/// with fewer experts than others end with zeros.
template <bool kAllExperts>
__device__ std::int32_t count_for(const DeviceGroup& group, std::int32_t to,
                                  const std::int32_t* expert_counts, std::int32_t i) {
  if constexpr (kAllExperts) return expert_counts[i];
  return i < group.expert_table.count_of(to) ? expert_counts[group.expert_table.first_of(to) + i]
                                             : 0;
}

/// Writes the notice, and the counts where given, to every rank, then raises `entered` there. A
/// rank gets the counts of its own experts, or with kAllExperts of all. The whole block calls.
template <bool kAllExperts = false>
__device__ void publish_notice(const DeviceGroup& group, std::uint64_t epoch,
                               const detail::DeviceNotice& notice, const std::int32_t* rank_counts,
                               const std::int32_t* expert_counts) {
  constexpr std::int32_t kWords = sizeof(detail::DeviceNotice) / 4;
  const auto* const words = reinterpret_cast<const std::int32_t*>(&notice);
  const std::int32_t expert_words = kAllExperts ? group.experts : group.local_experts;
  const std::int32_t length = kWords + (rank_counts != nullptr ? group.ranks + expert_words : 0);
  for (std::int32_t i = threadIdx.x; i < length * group.ranks; i += blockDim.x) {
    const std::int32_t to = i / length, w = i % length;
    std::int32_t value = 0;
    if (w < kWords)
      value = words[w];
    else if (w < kWords + group.ranks)
      value = rank_counts[w - kWords];
    else
      value = count_for<kAllExperts>(group, to, expert_counts, w - kWords - group.ranks);
    reinterpret_cast<std::int32_t*>(notice_at(group, to, epoch, group.me))[w] = value;
  }
  __syncthreads();
  for (std::int32_t to = threadIdx.x; to < group.ranks; to += blockDim.x)
    raise_signal(group, group.layout.entered, to, epoch);
}

/// Waits for the notices of all ranks. The whole block calls; true in all threads when they have
/// arrived. `counted`: as for wait_signal; one block of a launch counts.
__device__ inline bool await_notices(const DeviceGroup& group, std::uint64_t epoch, Phase phase,
                                     std::uint32_t operation, bool counted = false) {
  const bool failed = aborted(group);  // in flight with the first signal
  bool good = true;
  for (std::int32_t rank = threadIdx.x; good && rank < group.ranks; rank += blockDim.x)
    good =
        wait_signal(group, group.layout.entered, rank, epoch, {phase, operation, epoch}, counted);
  if (counted && static_cast<std::int32_t>(threadIdx.x) < group.ranks)
    note_notified(group, KernelKind::normal, epoch);
  return __syncthreads_and(good && !failed);
}

/// DeviceNotice::global_scale of a dispatch.
__device__ inline std::uint32_t announced_scale(const NormalDispatch& params) {
  if (params.quantize != static_cast<std::uint32_t>(Quantize::nvfp4)) return 0;
  return __float_as_uint(params.global_scale == nullptr ? 1.0F : *params.global_scale);
}
/// True if an announced scale is positive and finite, or none is used.
__device__ inline bool has_usable_scale(const volatile detail::DeviceNotice& notice) {
  const std::uint32_t bits = notice.global_scale;
  return notice.quantize != static_cast<std::uint32_t>(Quantize::nvfp4) ||
         (bits > 0 && bits < numeric::kInfinityBits);
}

/// True if the notices of `rank` and of rank 0 describe the same operation, which can take place.
/// Every rank computes the same result.
__device__ inline bool agrees(const DeviceGroup& group, std::uint64_t epoch, std::int32_t rank) {
  const volatile detail::DeviceNotice& first = notice_of(group, epoch, 0);
  const volatile detail::DeviceNotice& other = notice_of(group, epoch, rank);
  // `&` rather than `&&` issues all loads at once; they are served by the second-level cache.
  return (first.operation == other.operation) & (first.dtype == other.dtype) &
         (first.row_bytes == other.row_bytes) & (first.scale_bytes == other.scale_bytes) &
         (first.has_weights == other.has_weights) & (first.handle_epoch == other.handle_epoch) &
         (first.expert_alignment == other.expert_alignment) & (first.quantize == other.quantize) &
         (first.global_scale == other.global_scale) & has_usable_scale(first) &
         (first.handle_epoch != kRefused);
}
/// Reports the first rank that does not agree; false when all do. One thread calls.
__device__ inline bool report_mismatch(const DeviceGroup& group, std::uint64_t epoch, Phase phase) {
  const volatile detail::DeviceNotice& first = notice_of(group, epoch, 0);
  if (first.handle_epoch == kRefused) {
    report_refused(group, Fault::no_dispatch, phase, 0, epoch);
    return true;
  }
  if (!has_usable_scale(first)) {
    report_fault(group, Fault::bad_scale, phase, 0, 0, epoch, first.global_scale, 0, 0, 0, false);
    return true;
  }
  for (std::int32_t rank = 1; rank < group.ranks; ++rank) {
    if (agrees(group, epoch, rank)) continue;
    report_refused(group, Fault::mismatch, phase, rank, epoch, 0, first.quantize,
                   notice_of(group, epoch, rank).quantize);
    return true;
  }
  return false;
}

/// Ends this block's part of an operation. It adds 1 to `finished` at all ranks, or only here where
/// the operation does not take place (`good` is false, then on all ranks alike). The block that
/// gets here last waits for all blocks of all ranks and advances the epoch. The whole block calls,
/// when its writes are complete.
__device__ inline void finish_operation(const DeviceGroup& group, std::uint64_t epoch, bool good,
                                        Phase phase, std::uint32_t operation) {
  __shared__ bool last;
  Counters& counters = group.memory->counters[static_cast<std::uint32_t>(KernelKind::normal)];
  __syncthreads();
  ptx::griddepcontrol_launch_dependents();
  // This counter only determines the last block. `finished`, which also counts this rank's blocks,
  // orders what the blocks wrote.
  if (threadIdx.x == 0) last = atomicAdd(&counters.done, 1u) == gridDim.x - 1;
  for (std::int32_t i = threadIdx.x; i < group.ranks; i += blockDim.x) {
    const std::int32_t to = (group.me + 1 + i) % group.ranks;  // ranks start with different targets
    if (good || to == group.me)
      ptx::red_release_sys_add(signal_at(group, to, group.layout.finished, group.me), 1);
  }
  __syncthreads();
  if (!last) return;
  const bool counts = group.record != nullptr && good;
  if (counts && threadIdx.x == 0)
    launch_record(group, KernelKind::normal, epoch).sent = ptx::globaltimer();
  for (std::int32_t rank = threadIdx.x; rank < group.ranks; rank += blockDim.x) {
    if (!good && rank != group.me) continue;
    const volatile detail::DeviceNotice& notice = notice_of(group, epoch, rank);
    const std::uint64_t wanted =
        group.memory->finished[rank] + (rank == group.me ? gridDim.x : notice.blocks);
    if (!aborted(group))
      wait_signal(group, group.layout.finished, rank, wanted, {phase, operation, epoch}, counts);
    group.memory->finished[rank] = wanted;
  }
  __syncthreads();
  // Ends the waits of the other ranks for this one. The report is complete: its writer, if not in
  // this block, fenced it before its block was counted in `done`.
  if (aborted(group)) {
    const auto fault = static_cast<Fault>(group.report->fault);
    const std::uint64_t word = detail::failed_word(group.report->rank, fault == Fault::peer_failed);
    for (std::int32_t rank = threadIdx.x; rank < group.ranks; rank += blockDim.x)
      raise_signal(group, group.layout.failed, rank, word);
    return;  // the epoch stays, so that no later launch takes itself for a new operation
  }
  if (threadIdx.x != 0) return;
  if (counts) note_end(group, KernelKind::normal, epoch);
  group.memory->epoch = epoch;
  counters = {};
}

}  // namespace shoal::ep::cuda
