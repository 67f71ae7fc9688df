// SPDX-License-Identifier: Apache-2.0
// faults.cuh: how a kernel reports a fault to the host. The host turns reports into errors
// (fault_messages.cpp).
#pragma once

#include "ep/cuda/device/group.cuh"

namespace shoal::ep::cuda {

/// The wait or check in which a kernel found a fault.
enum class Phase : std::uint32_t {
  none,                          ///< route, which does not wait
  dispatch_notify,               ///< counts and granted regions
  dispatch_receive,              ///< rows
  combine_notify,                ///< where the expert outputs are
  combine_fetch,                 ///< expert outputs that their rank stages
  combine_finish,                ///< word that the expert outputs have been fetched
  low_latency_dispatch_grant,    ///< word that slots have been read
  low_latency_dispatch_receive,  ///< rows
  low_latency_combine_weights,
  low_latency_combine_grant,    ///< word that combine rows have been read
  low_latency_combine_receive,  ///< combine rows
  dispatch_rail,                ///< between nodes: chunks of tokens, or room for them at the peer
  combine_rail,                 ///< between nodes: chunks of sums, or room for them
};

enum class Fault : std::uint32_t {
  none,
  timeout,
  peer_failed,
  mismatch,
  no_room,
  too_many_rows,
  too_many_expert_major,  ///< rows of an expert-major result
  bad_index,
  two_experts,  ///< a token names an expert twice
  bad_row,      ///< in CombineOptions::topk_rows
  no_dispatch,  ///< the handle belongs to a dispatch that was refused
  network,      ///< it refused what was to be sent to the rank
  bad_scale,    ///< the global scale that the caller gave, whose bits are FaultReport::seen
  other_scale,  ///< the rank has another one, `seen`, than this rank, `value`
  other_mode,   ///< the rank is in a normal operation and waits for this low-latency one
};

/// Faults after which the group cannot continue.
SHOAL_HOST_DEVICE constexpr bool is_fatal(Fault fault) {
  return fault == Fault::timeout || fault == Fault::peer_failed || fault == Fault::network ||
         fault == Fault::other_mode;
}

/// Faults of indices that the caller gave, which count as none: the operation takes place.
SHOAL_HOST_DEVICE constexpr bool is_bad_index(Fault fault) {
  return fault == Fault::bad_index || fault == Fault::two_experts || fault == Fault::bad_row;
}

/// A fault that was found on the GPU. One report a group, in host memory that the device writes;
/// `fault` is written last.
struct FaultReport {
  volatile std::uint32_t fault;
  volatile Phase phase;
  volatile std::int32_t rank;
  volatile std::uint32_t operation;  ///< detail::Operation of the wait
  volatile std::uint64_t epoch, seen;
  /// A mismatch in normal mode has the Quantize of rank 0 and of `rank` in `value` and `allowed`.
  volatile std::int64_t token, value, allowed;
  /// Low latency: ranks that timed out and are skipped from now on.
  volatile std::uint32_t masked[kMaxDeviceRanks];
};

#ifdef __CUDACC__

/// Writes the report. Any thread may call.
///
/// A fatal fault stays: nothing else is reported after it. Of faults that leave the group usable
/// the first one stays until the host has read it, with two exceptions: a refusal replaces a bad
/// index, because a rank may be waiting for it; of bad indices in one phase the lowest token stays.
__device__ inline void report_fault(const DeviceGroup& group, Fault fault, Phase phase,
                                    std::uint32_t operation, std::int32_t rank, std::uint64_t epoch,
                                    std::uint64_t seen, std::int64_t token = 0,
                                    std::int64_t value = 0, std::int64_t allowed = 0,
                                    bool fatal = true) {
  constexpr std::uint32_t kFatal = 1, kWriting = 2;
  for (;;) {
    const std::uint32_t held = atomicCAS(&group.memory->aborted, 0u, fatal ? kFatal : kWriting);
    if (held == 0u) break;
    if (held == kFatal) return;
  }
  FaultReport& report = *group.report;
  const bool replaces = is_bad_index(static_cast<Fault>(report.fault)) &&
                        (!is_bad_index(fault) || (report.phase == phase && token < report.token));
  if (fatal || report.fault == static_cast<std::uint32_t>(Fault::none) || replaces) {
    report.phase = phase;
    report.operation = operation;
    report.rank = rank;
    report.epoch = epoch;
    report.seen = seen;
    report.token = token;
    report.value = value;
    report.allowed = allowed;
    __threadfence_system();
    report.fault = static_cast<std::uint32_t>(fault);
    __threadfence_system();
  }
  if (!fatal) atomicExch(&group.memory->aborted, 0u);
}

/// Reports why an operation does not take place on any rank. The group stays usable.
__device__ inline void report_refused(const DeviceGroup& group, Fault fault, Phase phase,
                                      std::int32_t rank, std::uint64_t epoch,
                                      std::int64_t token = 0, std::int64_t value = 0,
                                      std::int64_t allowed = 0) {
  report_fault(group, fault, phase, 0, rank, epoch, 0, token, value, allowed, false);
}

__device__ inline bool aborted(const DeviceGroup& group) {
  return *static_cast<volatile std::uint32_t*>(&group.memory->aborted) == 1u;
}

#endif

}  // namespace shoal::ep::cuda
