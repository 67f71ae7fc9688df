// SPDX-License-Identifier: Apache-2.0
// record.cuh: what the kernels of a group count: rows, waits for each rank, durations of phases.
//
// Kernels write to device memory, which the host copies from time to time (kernel_recorder.cpp): a
// store to host memory would delay the end of a kernel by a microsecond. A counter is a relaxed
// atomic that nothing waits for; what many blocks count has several copies, because atomics on one
// address take place one after another. A launch notes its times in a ring; the next launch of its
// kind adds them to the durations, because the block that writes the last time is not known before.
//
// Nothing is recorded where DeviceGroup::record is nullptr.
#pragma once

#include "ep/cuda/device/group.cuh"
#include "shoal/device/ptx.cuh"

namespace shoal::ep::cuda {

/// Same values as in shoal::detail::record.
enum class RecordedOperation : std::uint32_t {
  dispatch,
  combine,
  low_latency_dispatch,
  low_latency_combine,
  count
};

/// The times of a launch (%globaltimer). Valid if `epoch` is that of the launch. A time before
/// begin() is that of an earlier launch.
struct LaunchRecord {
  std::uint64_t epoch, operation;
  std::uint64_t start;     ///< of the first block
  std::uint64_t notified;  ///< when the last awaited rank arrived
  std::uint64_t sent;      ///< normal mode: the last block has no rows left
  /// Between nodes: a kernel in front of the launch began. Valid if `front_epoch` is that of the
  /// launch.
  std::uint64_t front, front_epoch;
  /// Between nodes: the epoch of a low-latency send, once the kernel that forwards it has ended.
  std::uint64_t forwarded;
  std::uint64_t rows, bytes;  ///< as in OperationCounts
  /// End times, each of the last block among those that share a word; the latest is that of the
  /// launch.
  static constexpr std::uint32_t kEnds = 8;
  std::uint64_t ends[kEnds];

  SHOAL_HOST_DEVICE std::uint64_t begin() const { return front_epoch == epoch ? front : start; }
  SHOAL_HOST_DEVICE std::uint64_t end() const {
    std::uint64_t last = 0;
    for (const std::uint64_t end : ends) last = end > last ? end : last;
    return last;
  }
};

/// Durations; bucket i counts those of 2^i to 2^(i+1) - 1 ns.
struct DurationRecord {
  static constexpr std::uint32_t kBuckets = 40;
  std::uint64_t sum;
  std::uint64_t buckets[kBuckets];
};

struct OperationCounts {
  std::uint64_t operations;  ///< that have ended
  // Rows of normal mode; those of low-latency mode are in LowLatencyRows.
  std::uint64_t rows;      ///< sent or fetched
  std::uint64_t bytes;     ///< of these rows
  std::uint64_t received;  ///< rows that came here
  std::uint64_t waited;    ///< nanoseconds in which the operation waited for some rank
};

/// Rows that some of the blocks have counted in low-latency mode.
struct alignas(128) LowLatencyRows {
  std::uint64_t received, combined;
  std::uint64_t sent[kMaxDeviceRanks][3];  ///< to each rank in 16, 8 and 4 bits a channel
};

/// Totals of this rank's exchange with another one.
struct RankRecord {
  std::uint64_t rows, bytes;  ///< sent by normal dispatches
  /// Rows that normal dispatches sent over a network: to the rail peer on each node that needs
  /// them, which passes them on. Those of low-latency mode are in LowLatencyRows.
  std::uint64_t network_rows, network_bytes;
  std::uint64_t waits, waited;  ///< that were not over at once, and their nanoseconds
  /// A wait of more than a millisecond: WaitPlace::word, and its begin. It is over once the
  /// operation has ended.
  std::uint64_t waiting, waiting_since;
};

/// Phases of a launch that have durations.
inline constexpr std::uint32_t kLaunchPhases = 3;
/// Copies of LowLatencyRows.
inline constexpr std::uint32_t kRowCopies = 16;
/// Launches of a kind that the ring keeps.
inline constexpr std::uint32_t kLaunches = 32;
inline constexpr auto kKernelKinds = static_cast<std::uint32_t>(KernelKind::count);
inline constexpr auto kRecordedOperations = static_cast<std::uint32_t>(RecordedOperation::count);

/// In device memory, zeroed when the group starts.
struct KernelRecord {
  /// Normal mode: notify, send, receive or finish. Low latency: send, receive.
  DurationRecord durations[kRecordedOperations][kLaunchPhases];
  OperationCounts operations[kRecordedOperations];
  std::uint64_t added[kKernelKinds];  ///< epoch of the last launch that is part of `durations`
  RankRecord ranks[kMaxDeviceRanks];
  LowLatencyRows low_latency_rows[kRowCopies];
  /// Longest wait, indexed by parity of the epoch, of a combine for the weights of a rank, until
  /// the next send adds it.
  std::uint64_t weight_wait[2][kMaxDeviceRanks];
  LaunchRecord launches[kKernelKinds][kLaunches];
  std::uint64_t expert_rows[1];  ///< [local_experts] received
};
inline constexpr std::size_t kernel_record_bytes(std::int64_t local_experts) {
  return sizeof(KernelRecord) + static_cast<std::size_t>(local_experts) * sizeof(std::uint64_t);
}

#ifdef __CUDACC__

__device__ inline void count_up(std::uint64_t* counter, std::uint64_t amount) {
  atomicAdd(reinterpret_cast<unsigned long long*>(counter),
            static_cast<unsigned long long>(amount));
}
__device__ inline void raise_to(std::uint64_t* at, std::uint64_t value) {
  atomicMax(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
}

__device__ inline OperationCounts& totals_of(const DeviceGroup& group, RecordedOperation of) {
  return group.record->operations[static_cast<std::uint32_t>(of)];
}
__device__ inline LaunchRecord& launch_record(const DeviceGroup& group, KernelKind kind,
                                              std::uint64_t epoch) {
  return group.record->launches[static_cast<std::uint32_t>(kind)][epoch % kLaunches];
}

/// One thread of the launch calls when it begins.
__device__ inline void note_start(const DeviceGroup& group, KernelKind kind, std::uint64_t epoch,
                                  RecordedOperation operation) {
  if (group.record == nullptr) return;
  LaunchRecord& launch = launch_record(group, kind, epoch);
  launch.start = ptx::globaltimer();
  launch.operation = static_cast<std::uint64_t>(operation);
  launch.rows = launch.bytes = 0;
  launch.epoch = epoch;
}

/// A kernel in front of the launch calls when it begins, before it waits; of several, the first
/// one's time counts. One thread calls.
__device__ inline void note_front(const DeviceGroup& group, KernelKind kind, std::uint64_t epoch) {
  if (group.record == nullptr) return;
  LaunchRecord& launch = launch_record(group, kind, epoch);
  if (launch.front_epoch == epoch) return;
  launch.front = ptx::globaltimer();
  launch.front_epoch = epoch;
}

/// Rows of an operation of normal mode. The block that noted the start calls.
__device__ inline void count_rows_moved(const DeviceGroup& group, std::uint64_t epoch,
                                        RecordedOperation operation, std::uint64_t rows,
                                        std::uint64_t bytes) {
  OperationCounts& totals = totals_of(group, operation);
  LaunchRecord& launch = launch_record(group, KernelKind::normal, epoch);
  count_up(&totals.rows, rows);
  count_up(&totals.bytes, bytes);
  count_up(&launch.rows, rows);
  count_up(&launch.bytes, bytes);
}

/// Counters in which the block counts rows of low-latency mode.
__device__ inline LowLatencyRows& low_latency_rows(const DeviceGroup& group) {
  return group.record->low_latency_rows[blockIdx.x % kRowCopies];
}

/// One thread of each block calls when the block has nothing left to do.
__device__ inline void note_end(const DeviceGroup& group, KernelKind kind, std::uint64_t epoch) {
  if (group.record == nullptr) return;
  LaunchRecord& launch = launch_record(group, kind, epoch);
  *static_cast<volatile std::uint64_t*>(&launch.ends[blockIdx.x % LaunchRecord::kEnds]) =
      ptx::globaltimer();
}

/// A thread calls when the rank arrived for which it waited at the start of the launch.
__device__ inline void note_notified(const DeviceGroup& group, KernelKind kind,
                                     std::uint64_t epoch) {
  if (group.record != nullptr)
    raise_to(&launch_record(group, kind, epoch).notified, ptx::globaltimer());
}

/// Counts a wait for another rank; 0: there was none.
__device__ inline void count_wait(const DeviceGroup& group, std::int32_t rank,
                                  std::uint64_t waited) {
  if (group.record == nullptr || waited == 0 || rank == group.me) return;
  count_up(&group.record->ranks[rank].waits, 1);
  count_up(&group.record->ranks[rank].waited, waited);
}

__device__ inline void count_duration(const DeviceGroup& group, std::uint64_t operation,
                                      std::uint32_t phase, std::uint64_t from, std::uint64_t to) {
  const std::uint64_t took = to > from ? to - from : 0;
  DurationRecord& durations = group.record->durations[operation][phase];
  std::uint32_t bucket = 0;
  while (took >> (bucket + 1) != 0 && bucket < DurationRecord::kBuckets - 1) ++bucket;
  count_up(&durations.sum, took);
  count_up(&durations.buckets[bucket], 1);
}

/// Adds the launch before that of `epoch` to the durations. One thread of the launch calls; out of
/// line, because it runs alongside the work of the launch and should not take its registers.
__device__ __noinline__ inline void add_last_launch(const DeviceGroup& group, KernelKind kind,
                                                    std::uint64_t epoch) {
  const LaunchRecord last = launch_record(group, kind, epoch - 1);
  // A launch that did not count, or an operation that did not take place.
  const std::uint64_t begin = last.begin(), end = last.end();
  if (last.epoch == 0) return;  // this launch is the first one
  if (last.epoch != epoch - 1 || end < last.start || last.operation >= kRecordedOperations) return;
  OperationCounts& counts = group.record->operations[last.operation];
  const bool normal = kind == KernelKind::normal;
  const bool receives = kind == KernelKind::low_latency_dispatch_receive ||
                        kind == KernelKind::low_latency_combine_receive;
  const std::uint64_t notified = max(last.notified, begin);
  if (normal || receives) count_up(&counts.operations, 1);
  if (normal) {
    count_duration(group, last.operation, 0, begin, notified);
    count_duration(group, last.operation, 1, notified, last.sent);
    count_duration(group, last.operation, 2, last.sent, end);
    count_up(&counts.waited, notified - begin + (end - last.sent));
  } else {
    count_duration(group, last.operation, receives ? 1 : 0, begin, end);
    count_up(&counts.waited, notified - begin);
  }
  group.record->added[static_cast<std::uint32_t>(kind)] = epoch - 1;
}

#endif

}  // namespace shoal::ep::cuda
