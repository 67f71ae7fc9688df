// SPDX-License-Identifier: Apache-2.0
// self_signalling.cuh: rows without flags. Every word of an empty row holds a sentinel, and the
// receiver polls the row itself.
//
// No flag, fence or barrier stands between the stores of a row and the rank that waits for it, and
// the receiver uses the beginning of a row while its end is still on the way. The rank that reads a
// word writes the sentinel back; a grant of the half says that this is done for all rows.
//
// Each word is stored and loaded atomically and carries its own state, so no order between words is
// needed. The rows of groups that mask ranks have flags instead (slot_ready, combine_flags),
// because nothing would read the rows of a masked rank and put the sentinel back.
#pragma once

#include "ep/cuda/low_latency/device/waits.cuh"

namespace shoal::ep::cuda {

__device__ inline bool self_signalling(const DeviceGroup& group) {
  return group.mask_failed == 0;
}

/// Raises the flag of a row. Where no receive waits for flags, it only answers whether a receive
/// would wait, and may overtake the row: a release waits for the stores before it.
__device__ inline void raise_row_flag(const DeviceGroup& group, std::uint64_t* flag,
                                      std::uint64_t value) {
  if (self_signalling(group))
    ptx::st_relaxed_sys_global(flag, value);
  else
    ptx::st_release_sys_global(flag, value);
}

__device__ inline uint4 sentinels() {
  return uint4{kSentinel, kSentinel, kSentinel, kSentinel};
}

/// True if none of the four words is the sentinel, which is the largest of all words.
__device__ inline bool is_written(const uint4& data) {
  return max(max(data.x, data.y), max(data.z, data.w)) != kSentinel;
}
/// Likewise.
template <std::uint32_t count>
__device__ bool are_written(const std::uint32_t (&words)[count]) {
  std::uint32_t most = words[0];
#pragma unroll
  for (std::uint32_t i = 1; i < count; ++i) most = max(most, words[i]);
  return most != kSentinel;
}

/// How the scale of a group of NaNs travels in MXFP8: four of 0xff would look like the sentinel,
/// and no finite bfloat16 has a scale of 0xfe.
inline constexpr std::uint32_t kMxNanOnTheWire = 0xfe;

/// Replaces a word that looks like the sentinel. Only two bfloat16 NaNs can: float8 codes and sums
/// have one NaN pattern each, a different one, and float32 scales are finite. They become two other
/// NaNs. Rows in other formats have no such word when they are stored.
__device__ inline std::uint32_t without_sentinel(std::uint32_t word) {
  return word == kSentinel ? kSentinel - 1 : word;
}
__device__ inline void store_row(uint4* at, const uint4& data) {
  ptx::st_relaxed_sys_global(at, uint4{without_sentinel(data.x), without_sentinel(data.y),
                                       without_sentinel(data.z), without_sentinel(data.w)});
}
__device__ inline void store_word(std::uint32_t* at, std::uint32_t word) {
  ptx::st_relaxed_sys_global(at, without_sentinel(word));
}

/// A warp fills memory with the sentinel.
__device__ inline void fill_sentinel(std::byte* from, std::size_t bytes) {
  for (std::size_t at = lane_id() * sizeof(uint4); at < bytes; at += 32 * sizeof(uint4))
    *reinterpret_cast<uint4*>(from + at) = sentinels();
}

/// The operation whose rows are awaited, and where its disagreement is recorded: rows of an
/// operation on which ranks did not agree are not awaited.
struct RowWait {
  Phase phase;
  std::uint32_t operation;
  std::uint64_t epoch;
  const std::uint64_t* dirty;    ///< [2]: GroupMemory::dirty_dispatch or dirty_combine
  const std::uint64_t* notices;  ///< of all ranks, a line apart
};

__device__ inline RowWait dispatch_row_wait(const DeviceGroup& group, Phase phase,
                                            std::uint64_t epoch) {
  return {phase, kDispatchOperation, epoch, group.memory->dirty_dispatch,
          dispatch_notice(group, group.me, epoch, 0)};
}
__device__ inline RowWait combine_row_wait(const DeviceGroup& group, Phase phase,
                                           std::uint64_t epoch) {
  return {phase, kCombineOperation, epoch, group.memory->dirty_combine,
          combine_notice(group, group.me, epoch, 0)};
}

__device__ inline bool disagreed(const RowWait& rows) {
  return ptx::ld_relaxed_sys_global(rows.dirty + (rows.epoch & 1)) == rows.epoch;
}

/// Deadlines of a wait for rows that are no times: the wait has failed; plus a rank, this one is in
/// normal mode, so that rows of it which the following polls do not find never come.
inline constexpr std::uint64_t kWaitFailed = 0, kOtherMode = 1;

/// The deadline of a wait for rows of `rank` from now on. Reports a failure that is not reported
/// yet. Out of line and without access to the rows, so that the caller keeps the rows in registers.
__device__ __noinline__ inline std::uint64_t check_wait(const DeviceGroup& group,
                                                        const RowWait& rows, std::int32_t rank,
                                                        std::uint64_t deadline) {
  if (aborted(group) || disagreed(rows)) return kWaitFailed;
  const std::uint64_t other_mode = kOtherMode + static_cast<std::uint32_t>(rank);
  Fault fault = deadline == other_mode ? Fault::other_mode : Fault::timeout;
  if (deadline != other_mode && deadline < kOtherMode + kMaxDeviceRanks)  // of another rank
    deadline = ptx::globaltimer() + group.timeout_ns;
  if (ptx::ld_relaxed_sys_global(signal_at(group, group.me, group.layout.failed, rank)) != 0)
    fault = Fault::peer_failed;
  if (fault == Fault::timeout && ptx::globaltimer() <= deadline) {
    const WaitPlace place{rows.phase, rows.operation, rows.epoch};
    if (is_in_normal_mode(group, rank, place)) return other_mode;
    if (group.record != nullptr) show_wait(group, rank, deadline - group.timeout_ns, place.word());
    return deadline;
  }
  wait_failed(group, fault, rows.phase, rows.operation, rank, rows.epoch,
              static_cast<std::uint32_t>(ptx::ld_relaxed_sys_global(
                  rows.notices + rank * (kLine / sizeof(std::uint64_t)))));
  return kWaitFailed;
}

/// Loads `data[i]` from at(i) for each bit i of `wanted`, all of them in flight at once.
template <int count, typename At>
__device__ void load(std::uint32_t wanted, uint4 (&data)[count], At&& at) {
#pragma unroll
  for (int i = 0; i < count; ++i)
    if (wanted >> i & 1) data[i] = ptx::ld_relaxed_sys_global(at(i));
}

/// After load: rows without flags are polled until they have arrived and are replaced by the
/// sentinel. rank(i) is the sender. Returns false when the wait failed.
template <int count, typename At, typename Rank>
__device__ bool take_loaded(const DeviceGroup& group, const RowWait& rows, std::uint32_t wanted,
                            uint4 (&data)[count], At&& at, Rank&& rank) {
  if (!self_signalling(group)) return true;
  std::uint32_t missing = 0;
#pragma unroll
  for (int i = 0; i < count; ++i)
    if ((wanted >> i & 1) != 0 && !is_written(data[i])) missing |= 1u << i;
  if (missing != 0) {
    std::uint64_t deadline = ptx::globaltimer() + group.timeout_ns;
    for (std::uint32_t polls = 1; missing != 0; ++polls) {
      __nanosleep(kPollNs);
#pragma unroll
      for (int i = 0; i < count; ++i) {
        if ((missing >> i & 1) == 0) continue;
        data[i] = ptx::ld_relaxed_sys_global(at(i));
        if (is_written(data[i])) missing &= ~(1u << i);
      }
      if (polls % 64 == 0 && missing != 0 &&
          (deadline = check_wait(group, rows, rank(__ffs(missing) - 1), deadline)) == kWaitFailed)
        return false;
    }
  }
#pragma unroll
  for (int i = 0; i < count; ++i)
    if (wanted >> i & 1) *at(i) = sentinels();
  return true;
}

/// Loads and takes: load, then take_loaded.
template <int count, typename At, typename Rank>
__device__ bool take(const DeviceGroup& group, const RowWait& rows, std::uint32_t wanted,
                     uint4 (&data)[count], At&& at, Rank&& rank) {
  load(wanted, data, at);
  return take_loaded(group, rows, wanted, data, at, rank);
}

}  // namespace shoal::ep::cuda
