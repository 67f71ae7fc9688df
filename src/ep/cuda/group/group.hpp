// SPDX-License-Identifier: Apache-2.0
// group.hpp: what the CUDA backend keeps for a group, and how its calls are ordered on streams.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "ep/cuda/device/faults.cuh"
#include "ep/cuda/device/network_path.hpp"
#include "ep/cuda/group/captured_memory.hpp"
#include "ep/cuda/group/resources.hpp"
#include "ep/group/state.hpp"

namespace shoal::ep::cuda {

using detail::GroupState;

/// A group on its GPU: kernel parameter, report, stream, memory. One call at a time.
struct CudaGroup {
  explicit CudaGroup(GroupState& owner);
  ~CudaGroup();
  CudaGroup(const CudaGroup&) = delete;
  CudaGroup& operator=(const CudaGroup&) = delete;

  GroupState& state;
  DeviceGroup device{};  ///< complete once the group has its memory (open)
  cudaStream_t stream = nullptr;
  /// Calls that name no stream use this one: `stream`, or that of another CudaGroup of this group.
  cudaStream_t default_stream = nullptr;
  std::shared_ptr<void> report_memory, device_memory;
  std::shared_ptr<void> record_memory;  ///< DeviceGroup::record; kernels may outlive its recorder
  FaultReport* report = nullptr;        ///< host memory
  int multiprocessors = 0;
  NetworkPath network = NetworkPath::proxy;  ///< to ranks that loads and stores do not reach
  /// Threads of this process move rows between nodes by calls of the driver.
  bool driver_moves_rows = false;
  bool loads_lazily = false;  ///< CUDA loads a kernel when it is first used
  /// A call was captured: the epochs of calls and of kernels differ from then on.
  std::atomic<bool> has_captured = false;
  std::atomic<bool> fault_thrown = false;  ///< a fatal one
  bool low_latency_counts = false;   ///< kernels of low-latency mode have DeviceGroup::record, too
  int ranks_on_gpu = 1;              ///< ranks of the group on this GPU, which share its SMs
  bool processes_share_gpu = false;  ///< some of these ranks are other processes
  std::shared_ptr<GroupResources> resources;
  cudaStream_t last_stream = nullptr;  ///< of the last call; calls of a group run one after another

  /// Starts a call: makes the GPU current on this thread, and orders the call's stream after
  /// earlier calls and after Launch::after. Returns the stream.
  cudaStream_t begin(const Launch& launch);
  /// Orders the next call after work on this stream. Any thread.
  void order_after(cudaStream_t other) noexcept;
  /// Ends a call: reports launch errors, records Launch::done, and orders later calls. The caller
  /// may destroy its stream from now on.
  void end(const Launch& launch, cudaStream_t on);
  /// Orders later calls after the work queued so far, even if this call throws.
  void record(cudaStream_t on);
  /// Reports errors of the first of two launches of a call. It records nothing, because no other
  /// work may come between the two kernels.
  void end_first() { check(cudaGetLastError(), "launch of a kernel"); }
  bool capturing(cudaStream_t on) const;
  /// True if the stream of the call that began last is captured; asks no driver.
  bool captures() const { return begun_.graph != 0; }
  /// The number of the graph that captures it (CapturedMemory); 0: none.
  std::uint64_t graph() const { return begun_.graph; }
  /// A block for the call that began last. A graph that captures the call keeps it.
  std::shared_ptr<void> take(ArrayPool& pool) {
    return captures() ? captured_.take(pool) : pool.take();
  }
  /// The call that began last uses this memory. A graph that captures the call keeps it.
  void uses(const std::shared_ptr<void>& memory) {
    if (captures()) captured_.keep(memory);
  }
  /// Throws where the GPU has reported a fatal fault. Other reports are thrown by calls that wait:
  /// a call that threw them before it queues its kernel would leave this rank out of step.
  void throw_failed();
  /// Throws what the GPU has reported, if anything (fault_messages.cpp).
  void throw_reported();
  /// Logs a fatal fault that the GPU has reported, once, at the second call that finds it and no
  /// error thrown. For a thread that asks now and then (KernelRecorder): a program that only
  /// replays graphs makes no call that would throw.
  void warn_of_unnoticed_fault();
  /// A rank that has given the group up, read from GPU memory.
  std::optional<std::int32_t> ask_failed_rank();
  /// The first cause of the failure of `rank`, which has given the group up; reads GPU memory.
  std::int32_t cause_of(std::int32_t rank) const;
  /// The rank in the other mode, where that is why `rank` has given the group up. `low_latency`:
  /// the mode of this rank. Reads GPU memory.
  std::optional<std::int32_t> in_other_mode(std::int32_t rank, bool low_latency) const;
  /// Calls `read` with a stream of its own, which no capture and no kernel holds up.
  std::optional<Error> on_own_stream(
      const std::function<std::optional<Error>(cudaStream_t)>& read) const;
  /// Device memory in stream order after the last call; contents undefined.
  std::shared_ptr<void> allocate(std::size_t bytes);
  /// A tensor in `memory`.
  Tensor tensor(const std::shared_ptr<void>& memory, std::size_t offset, DataType dtype,
                std::initializer_list<std::int64_t> shape) const;
  /// The elements of an optional tensor; nullptr where it is undefined. A tensor without tokens can
  /// have no memory; it yields another address, because kernels recognise by nullptr that the call
  /// has no such tensor.
  template <typename T>
  const T* elements(const ConstTensorView& tensor) const {
    if (!tensor.defined() || tensor.data != nullptr)
      return tensor.defined() ? tensor.as<T>() : nullptr;
    return reinterpret_cast<const T*>(device.memory);
  }
  /// Initialises this rank's block and completes `device`.
  void open();
  /// The same for a block that is not the one of GroupState: its layout, and every rank's copy of
  /// it as an address here.
  void open(const detail::DeviceLayout& layout, std::span<std::byte* const> blocks);
  /// Shows the kernels of this mode the other mode, which has memory of its own and is open, so
  /// that a rank in one mode and another in the other one find each other.
  void show(const CudaGroup& other);
  /// Waits for all calls; throws a fatal fault.
  void drain();
  /// Waits for all calls; throws any fault.
  void synchronize();

 private:
  /// The `failed` words of all ranks at this one.
  std::vector<std::uint64_t> failed_words() const;
  /// Fills in those in the block of one mode for ranks whose word is still 0.
  void add_failed_words(const DeviceGroup& of, std::vector<std::uint64_t>& words) const;
  void wait_for_readers(cudaStream_t on);
  bool waits_for_gpu() const;
  void wait_for_gpu();
  /// Records between_ where `record` has left that for later.
  void record_left();

  const CudaGroup* other_ = nullptr;    ///< of the other mode, if it has memory of its own
  std::shared_ptr<void> other_memory_;  ///< GroupMemory::other_mode
  std::optional<RecentMemory> recent_;
  std::mutex readers_mutex_;
  std::vector<cudaStream_t> readers_;  ///< streams that later calls are ordered after
  cudaEvent_t read_ = nullptr;         // recorded on each of them in turn
  cudaEvent_t between_ = nullptr;      // recorded after each call on a stream of the caller
  // While all calls have been on the legacy default stream, between_ is recorded only when one
  // arrives on another stream: an event costs host time and separates the kernels of neighbouring
  // calls. Other streams can be destroyed or captured by then.
  bool left_ = false;      // between_ has still to be recorded after the last call
  bool switches_ = false;  // a call has followed one on another stream
  bool under_way_ = true;  // calls may be in progress: another stream has to wait for them
  /// The call that began last, so that the driver is asked only once whether its stream is
  /// captured.
  struct {
    cudaStream_t on = nullptr;
    std::uint64_t graph = 0;
  } begun_;
  CapturedMemory captured_;
  int unnoticed_ = 0;  ///< calls of warn_of_unnoticed_fault that found a fault
};

}  // namespace shoal::ep::cuda
