// SPDX-License-Identifier: Apache-2.0
// grants.cuh: a rank grants a half of its slots or combine rows to the others when it has read them
// (signals dispatch_read and combine_read).
//
// A receive right after its send raises no signal: the next send does when it begins, so that
// the receive pays for no fence.
#pragma once

#include "ep/cuda/low_latency/device/self_signalling.cuh"

namespace shoal::ep::cuda {

/// Signals and flags of one kind of halves: those that this rank has read, and those on which ranks
/// disagreed.
struct HalfGrants {
  std::size_t signals;  ///< DeviceLayout::dispatch_read or combine_read
  const std::uint64_t* received;
  std::uint64_t* dirty;  ///< [2]: GroupMemory::dirty_dispatch or dirty_combine
};
__device__ inline HalfGrants dispatch_grants(const DeviceGroup& group) {
  return {group.layout.dispatch_read, &group.memory->dispatches_received,
          group.memory->dirty_dispatch};
}
__device__ inline HalfGrants combine_grants(const DeviceGroup& group) {
  return {group.layout.combine_read, &group.memory->combines_received, group.memory->dirty_combine};
}

/// Restores a half that may hold words of `left` that no rank has read, by clear(left). All words
/// that were sent into it have arrived once every rank has begun a later send. A warp calls.
template <typename Clear>
__device__ void clean(const DeviceGroup& group, const HalfGrants& grants, std::uint64_t* dirty,
                      std::uint64_t left, const RowWait& send, Clear&& clear) {
  if (left == 0 || left >= send.epoch) return;  // the send's own receive can run concurrently
  bool all = true;
  for (auto rank = static_cast<std::int32_t>(lane_id()); rank < group.ranks; rank += 32) {
    const std::uint64_t* const begun = signal_at(group, group.me, grants.signals, rank) + 1;
    all = wait_or_mask(
              group, rank, send.phase, send.operation, send.epoch,
              [&] { return ptx::ld_acquire_sys_global(begun) > left; }, begun, nullptr) &&
          all;
  }
  if (!__all_sync(kWarp, all)) return;
  clear(left);
  __syncwarp();
  __threadfence_system();
  if (lane_id() == 0) *dirty = 0;
  __syncwarp();
}

/// Tells all ranks that this send has begun, and grants what this rank's receives have read.
/// clear(epoch) restores a half of `own`.
///
/// All earlier launches of the stream have ended, so one fence orders their reads before the
/// grants. The send's own receive may run concurrently and does not count. A warp of the first
/// block of every send calls, before it waits for anything.
template <typename Clear>
__device__ void begin_send(const DeviceGroup& group, const HalfGrants& own, const HalfGrants& other,
                           const RowWait& send, Clear&& clear) {
  const auto tell = [&](std::size_t signals, std::size_t word, std::uint64_t value) {
    for (auto rank = static_cast<std::int32_t>(lane_id()); rank < group.ranks; rank += 32)
      ptx::st_relaxed_sys_global(signal_at(group, rank, signals, group.me) + word, value);
  };
  // All loads in flight at once.
  const std::uint64_t left[2] = {ptx::ld_relaxed_sys_global(own.dirty),
                                 ptx::ld_relaxed_sys_global(own.dirty + 1)};
  const std::uint64_t received = *own.received, other_received = *other.received;
  const bool other_clean = (other.dirty[0] | other.dirty[1]) == 0;
  __threadfence_system();
  tell(own.signals, 1, send.epoch);
  for (int half = 0; half < 2; ++half) clean(group, own, own.dirty + half, left[half], send, clear);
  tell(own.signals, 0, min(received, send.epoch - 1));
  if (other_clean) tell(other.signals, 0, other_received);
}

/// Grants a half at the end of a receive that does not directly follow its send: the next send can
/// be the one after next for this half, and others would wait for it. One lane a rank calls, after
/// all writes of the launch.
__device__ inline void grant_at_end(const DeviceGroup& group, const HalfGrants& grants,
                                    std::int32_t rank, std::uint64_t epoch) {
  if (grants.dirty[0] == 0 && grants.dirty[1] == 0)
    raise_signal(group, grants.signals, rank, epoch);
}

}  // namespace shoal::ep::cuda
