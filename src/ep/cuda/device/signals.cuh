// SPDX-License-Identifier: Apache-2.0
// signals.cuh: words by which ranks report the progress of an operation to each other, and waits
// for them with a deadline.
//
// A signal is a word in the block of the rank that waits, on a line for each rank that raises it.
// It holds the epoch of the last operation for which that rank has reached the point; epochs only
// grow.
//
// Memory order: a rank raises a signal by a release at system scope, and a wait ends with an
// acquire at system scope, so everything that the raising thread wrote or saw before is visible
// after the wait. Bulk copies need more, see tma.cuh.
#pragma once

#include "ep/cuda/device/faults.cuh"
#include "ep/cuda/device/record.cuh"
#include "shoal/device/ptx.cuh"

#ifdef __CUDACC__

namespace shoal::ep::cuda {

/// The signal that rank `owner` raises at rank `of`; `signals` is an offset of DeviceLayout.
__device__ inline std::uint64_t* signal_at(const DeviceGroup& group, std::int32_t of,
                                           std::size_t signals, std::int32_t owner) {
  return reinterpret_cast<std::uint64_t*>(group.block[of] + signals + owner * kLine);
}

__device__ inline void raise_signal(const DeviceGroup& group, std::size_t signals, std::int32_t to,
                                    std::uint64_t epoch) {
  ptx::st_release_sys_global(signal_at(group, to, signals, group.me), epoch);
}

/// The notice of `rank` for one epoch of normal mode, in the block of rank `of`.
__device__ inline std::byte* notice_at(const DeviceGroup& group, std::int32_t of,
                                       std::uint64_t epoch, std::int32_t rank) {
  return group.block[of] + group.layout.notices +
         ((epoch & 1) * static_cast<std::uint64_t>(group.ranks) + rank) * group.layout.notice_bytes;
}

/// The notice that `rank` has written for one epoch in this rank's block, once its `entered` is
/// there.
__device__ inline const volatile detail::DeviceNotice& notice_of(const DeviceGroup& group,
                                                                 std::uint64_t epoch,
                                                                 std::int32_t rank) {
  return *reinterpret_cast<const volatile detail::DeviceNotice*>(
      notice_at(group, group.me, epoch, rank));
}

/// Sleep between polls. Many threads may be waiting, and their loads would take bandwidth from the
/// threads that move rows.
inline constexpr std::uint32_t kPollNs = 40;

/// Operation and phase that wait, for messages.
struct WaitPlace {
  Phase phase;
  std::uint32_t operation;  ///< detail::Operation
  std::uint64_t epoch;

  /// For RankRecord::waiting.
  __device__ std::uint64_t word() const { return epoch << 8 | static_cast<std::uint32_t>(phase); }
};

/// Shows a wait that has lasted a millisecond. Of the many threads that may poll, few write: those
/// that find another wait.
__device__ __noinline__ inline void show_wait(const DeviceGroup& group, std::int32_t rank,
                                              std::uint64_t since, std::uint64_t word) {
  constexpr std::uint64_t kShownAfter = 1'000'000;  // ns
  if (ptx::globaltimer() < since + kShownAfter) return;
  volatile RankRecord& record = group.record->ranks[rank];
  if (record.waiting == word) return;
  record.waiting_since = since;
  record.waiting = word;
}

/// A wait that show_wait may have shown is over, but not the operation.
__device__ __noinline__ inline void hide_wait(const DeviceGroup& group, std::int32_t rank,
                                              std::uint64_t word) {
  volatile RankRecord& record = group.record->ranks[rank];
  if (record.waiting == word) record.waiting = 0;
}

/// Ends a wait of normal mode after the group's timeout, or where the rank has given up in
/// low-latency mode because it found this one in normal mode.
class Deadline {
 public:
  __device__ Deadline(const DeviceGroup& group, std::int32_t rank, const WaitPlace&)
      : group_(group), rank_(rank), at_(ptx::globaltimer() + group.timeout_ns) {}
  /// Why the wait is over; Fault::none: it is not.
  __device__ Fault fault(std::uint32_t) const {
    const DeviceGroup* const other = group_.memory->other_mode;
    if (other != nullptr &&
        ptx::ld_relaxed_sys_global(signal_at(*other, other->me, other->layout.failed, rank_)) != 0)
      return Fault::peer_failed;
    return ptx::globaltimer() > at_ ? Fault::timeout : Fault::none;
  }
  __device__ std::uint64_t at() const { return at_; }

 private:
  const DeviceGroup& group_;
  const std::int32_t rank_;
  const std::uint64_t at_;
};

/// Polls until `ready` is true. Returns false, with the reason in `fault`, when the group is
/// aborted (Fault::none), `rank` has given the group up, or the wait is over according to Limit.
/// Every 64th poll checks these; a wait that ends before reads the clock at most once.
template <typename Limit = Deadline, typename Ready>
__device__ bool poll(const DeviceGroup& group, std::int32_t rank, Ready&& ready, Fault& fault,
                     const WaitPlace& place) {
  if (ready()) return true;
  Limit limit(group, rank, place);
  for (std::uint32_t polls = 1;; ++polls) {
    __nanosleep(kPollNs);
    if (ready()) return true;
    if (polls % 64 != 0) continue;
    fault = Fault::none;
    if (aborted(group)) return false;
    fault = Fault::peer_failed;
    if (ptx::ld_relaxed_sys_global(signal_at(group, group.me, group.layout.failed, rank)) != 0)
      return ready();
    if ((fault = limit.fault(polls)) != Fault::none) return false;
    if (group.record != nullptr)
      show_wait(group, rank, limit.at() - group.timeout_ns, place.word());
  }
}

/// Waits until the signal that rank `from` raises here has reached `value`. On failure reports it
/// and returns false. `counted`: the time counts as a wait for the rank.
__device__ inline bool wait_signal(const DeviceGroup& group, std::size_t signals, std::int32_t from,
                                   std::uint64_t value, const WaitPlace& place, bool counted) {
  const std::uint64_t* const word = signal_at(group, group.me, signals, from);
  const auto ready = [&] { return ptx::ld_acquire_sys_global(word) >= value; };
  if (ready()) return true;
  counted = counted && group.record != nullptr;
  const std::uint64_t start = counted ? ptx::globaltimer() : 0;
  Fault fault;
  if (poll(group, from, ready, fault, place)) {
    if (counted) count_wait(group, from, ptx::globaltimer() - start);
    return true;
  }
  if (fault != Fault::none) {
    // A signal that counts blocks has not seen this epoch, whatever its number.
    const std::uint64_t seen =
        value == place.epoch ? ptx::ld_relaxed_sys_global(word) : place.epoch - 1;
    report_fault(group, fault, place.phase, place.operation, from, place.epoch, seen);
  }
  return false;
}

}  // namespace shoal::ep::cuda

#endif
