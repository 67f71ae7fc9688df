// SPDX-License-Identifier: Apache-2.0
// kernel_recorder.hpp: brings what the kernels of a group count (device/record.cuh) to the group's
// record on the host.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "ep/cuda/group/clock.hpp"
#include "ep/cuda/group/group.hpp"
#include "ep/cuda/group/kernel_counts.hpp"
#include "record/refresh.hpp"

namespace shoal::ep::cuda {

/// The modes of a group that have kernels; nullptr: the mode has none. Between nodes, each mode has
/// a CudaGroup of its own.
struct RecordedKernels {
  CudaGroup *normal, *low_latency;
  bool low_latency_counts = false;  ///< those of normal mode do
  NodeBorders borders;
};

/// While it exists, launches do not count.
class PausedCounting {
 public:
  explicit PausedCounting(CudaGroup& group)
      : group_(group), record_(std::exchange(group.device.record, nullptr)) {}
  ~PausedCounting() { group_.device.record = record_; }
  PausedCounting(const PausedCounting&) = delete;
  PausedCounting& operator=(const PausedCounting&) = delete;

 private:
  CudaGroup& group_;
  KernelRecord* const record_;
};

/// The record of a group's kernels. Made when the group has its memory; the kernels of later calls
/// count (DeviceGroup::record).
class KernelRecorder {
 public:
  /// At least one mode has kernels.
  explicit KernelRecorder(RecordedKernels kernels);
  ~KernelRecorder();
  KernelRecorder(const KernelRecorder&) = delete;
  KernelRecorder& operator=(const KernelRecorder&) = delete;

  /// Adds the operations that have ended. Copies the counters; keeps the earlier ones where the GPU
  /// does not copy them in time.
  void add_to(Statistics& statistics);
  /// Shows the counters for the last time.
  void stop() noexcept;

 private:
  /// Copies the counters and shows them in the record of the group.
  void refresh();
  bool copy();
  void ask_clock();

  const RecordedKernels kernels_;
  CudaGroup& group_;  ///< one of them
  const std::size_t bytes_;
  std::shared_ptr<void> host_memory_, clock_memory_;
  std::shared_ptr<CUstream_st> stream_;
  std::mutex mutex_;  ///< of what follows
  bool copying_ = false;
  Epochs done_{};
  std::unique_ptr<std::byte[]> last_;  ///< the KernelRecord that was copied last
  std::uint64_t questions_ = 0;
  std::int64_t clock_ = 0;
  std::unique_ptr<shoal::detail::record::Refresh> refresh_;
};

}  // namespace shoal::ep::cuda
