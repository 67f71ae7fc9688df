// SPDX-License-Identifier: Apache-2.0
// waits.cuh: waits of low-latency mode, which either fail the group or, with
// GroupOptions.mask_failed, mask the rank that is late.
#pragma once

#include "ep/cuda/device/signals.cuh"
#include "ep/cuda/low_latency/device/places.cuh"

namespace shoal::ep::cuda {

__device__ inline bool is_masked(const DeviceGroup& group, std::int32_t rank) {
  return group.mask_failed != 0 &&
         *static_cast<volatile std::uint32_t*>(&group.memory->masked[rank]) != 0;
}
__device__ inline void mask(const DeviceGroup& group, std::int32_t rank) {
  atomicExch(&group.memory->masked[rank], 1u);
  group.report->masked[rank] = 1;
  __threadfence_system();
}

/// True if `rank` is in an operation of normal mode that this rank has not called, without having
/// sent what the wait is for. Such an operation waits for all ranks. Within a node stores of a rank
/// arrive in their order: all that it has sent before is there after this call, and what is missing
/// then never comes. Between nodes a signal may overtake an earlier one, but the notice says what
/// was sent before.
__device__ inline bool is_in_normal_mode(const DeviceGroup& group, std::int32_t rank,
                                         const WaitPlace& place) {
  if (group.finds_other_mode == 0) return false;
  const DeviceGroup* const other = group.memory->other_mode;
  const DeviceGroup& normal = other == nullptr ? group : *other;
  const std::uint64_t entered =
      ptx::ld_acquire_sys_global(signal_at(normal, normal.me, normal.layout.entered, rank));
  if (entered <= normal.memory->epoch) return false;
  if (other == nullptr) return true;
  // The notice counts no grants.
  if (place.phase == Phase::low_latency_dispatch_grant ||
      place.phase == Phase::low_latency_combine_grant)
    return false;
  const volatile detail::DeviceNotice& notice = notice_of(normal, entered, rank);
  return (place.operation == kDispatchOperation ? notice.dispatches_sent : notice.combines_sent) <
         place.epoch;
}

/// The limit of a wait of low-latency mode: the time, and that the rank is in normal mode.
///
/// A rank that waits for a dead rank is late for the others, which would mask it as well. So a
/// waiting rank regularly tells the others that it waits for a third rank (a word next to the
/// signal `failed`), and a rank that sees such a word from the rank it waits for extends its own
/// limit by the timeout: at most ranks - 2 times, once for each rank that may be dead.
class ExtendedDeadline {
 public:
  __device__ ExtendedDeadline(const DeviceGroup& group, std::int32_t rank, const WaitPlace& place)
      : group_(group),
        place_(place),
        rank_(rank),
        at_(ptx::globaltimer() + group.timeout_ns),
        seen_(load_word()) {}

  __device__ Fault fault(std::uint32_t polls) {
    constexpr std::uint32_t kPollsPerWord = 1024;  // at most a millisecond
    if (group_.mask_failed != 0 && polls % kPollsPerWord == 0) tell_others();
    // Only the polls after the rank has been seen there prove that it has sent nothing before.
    if (in_normal_mode_ != 0) return Fault::other_mode;
    if (is_in_normal_mode(group_, rank_, place_)) in_normal_mode_ = 1;
    if (ptx::globaltimer() <= at_) return Fault::none;
    const std::uint32_t seen = load_word();
    if (group_.mask_failed == 0 || seen == seen_ || extensions_ == group_.ranks - 2)
      return Fault::timeout;
    seen_ = seen;
    extensions_ = extensions_ + 1;
    at_ += group_.timeout_ns;
    return Fault::none;
  }
  __device__ std::uint64_t at() const { return at_; }

 private:
  /// The word at rank `of` that changes while `owner` waits for another rank than `of`.
  __device__ std::uint64_t* word(std::int32_t of, std::int32_t owner) const {
    return signal_at(group_, of, group_.layout.failed, owner) + 1;
  }
  __device__ std::uint32_t load_word() const {
    return static_cast<std::uint32_t>(ptx::ld_relaxed_sys_global(word(group_.me, rank_)));
  }
  __device__ void tell_others() const {
    for (std::int32_t other = 0; other < group_.ranks; ++other)
      if (other != rank_ && other != group_.me)
        ptx::st_relaxed_sys_global(word(other, group_.me), ptx::globaltimer());
  }

  const DeviceGroup& group_;
  const WaitPlace& place_;
  const std::int32_t rank_;
  std::uint64_t at_;
  // Volatile keeps these in local memory: the thread needs its registers for the row in flight.
  volatile std::uint32_t seen_;
  volatile std::int32_t extensions_ = 0;
  volatile std::uint32_t in_normal_mode_ = 0;
};

/// Handles a wait for `rank` that failed: masks the rank, or fails the group and ends the waits of
/// the other ranks for this one.
__device__ inline void wait_failed(const DeviceGroup& group, Fault fault, Phase phase,
                                   std::uint32_t operation, std::int32_t rank, std::uint64_t epoch,
                                   std::uint64_t seen) {
  if (fault == Fault::none) return;
  if (group.mask_failed != 0) return mask(group, rank);
  const std::uint64_t word =
      detail::failed_word(rank, fault == Fault::peer_failed, fault == Fault::other_mode);
  report_fault(group, fault, phase, operation, rank, epoch, seen);
  for (std::int32_t other = 0; other < group.ranks; ++other)
    raise_signal(group, group.layout.failed, other, word);
}

/// Waits until `ready`, until `rank` is masked, or until the wait fails; true in the first case.
/// `waited` receives the nanoseconds that it took; it is not written when `ready` holds at once.
template <typename Ready>
__device__ bool wait_or_mask(const DeviceGroup& group, std::int32_t rank, Phase phase,
                             std::uint32_t operation, std::uint64_t epoch, Ready&& ready,
                             const std::uint64_t* word, std::uint64_t* waited) {
  if (ready()) return true;
  volatile std::uint64_t start = 0;  // volatile for the same reason as in ExtendedDeadline
  if (waited != nullptr) start = ptx::globaltimer();
  bool masked = false;
  Fault fault;
  const bool done = poll<ExtendedDeadline>(
      group, rank, [&] { return ready() || (masked = is_masked(group, rank)); }, fault,
      {phase, operation, epoch});
  if (waited != nullptr) *waited = ptx::globaltimer() - start;
  if (!done)
    wait_failed(group, fault, phase, operation, rank, epoch,
                static_cast<std::uint32_t>(ptx::ld_relaxed_sys_global(word)));
  return done && !masked;
}

/// For the statistics: the longest wait of a call for each rank.
__device__ inline void note_wait(std::uint64_t* longest, std::int32_t rank, std::uint64_t waited) {
  if (waited != 0)
    atomicMax(reinterpret_cast<unsigned long long*>(longest + rank),
              static_cast<unsigned long long>(waited));
}

/// Waits until the signal of `rank` here has reached `epoch`; false where the rank is masked.
/// `waited`: as for wait_or_mask.
__device__ inline bool wait_signal_or_mask(const DeviceGroup& group, std::size_t signals,
                                           std::int32_t rank, std::uint64_t epoch, Phase phase,
                                           std::uint32_t operation,
                                           std::uint64_t* waited = nullptr) {
  if (is_masked(group, rank)) return false;
  const std::uint64_t* const word = signal_at(group, group.me, signals, rank);
  return wait_or_mask(
      group, rank, phase, operation, epoch,
      [&] { return ptx::ld_acquire_sys_global(word) >= epoch; }, word, waited);
}

/// Counts a wait at the start of the launch of `epoch`, which has ended; 0: there was none.
__device__ inline void count_first_wait(const DeviceGroup& group, KernelKind kind,
                                        std::uint64_t epoch, std::int32_t rank,
                                        std::uint64_t waited) {
  if (waited == 0 || rank == group.me) return;
  count_wait(group, rank, waited);
  note_notified(group, kind, epoch);
}

}  // namespace shoal::ep::cuda
