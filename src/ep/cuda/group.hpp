// SPDX-License-Identifier: Apache-2.0
// group.hpp: what the CUDA backend keeps for a group, and how its calls are put on streams.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "ep/cuda/device/faults.cuh"
#include "ep/state.hpp"

namespace shoal::ep::cuda {

using detail::GroupState;

/// Throws Error{system} naming the call unless `status` is success.
void check(cudaError_t status, const char* what);

/// A stream of high priority that does not synchronise with the null stream, and the group's own
/// pool of device memory; the group has them as long as there is memory of the pool. Nothing here
/// ever synchronises the device: other PEs on this GPU may be waiting for this one.
///
/// The pool is the group's own because its memory is used on the streams of calls, which are
/// ordered one behind the other (CudaGroup::begin), whatever stream it is freed on.
struct GroupResources {
  std::shared_ptr<CUstream_st> taken_stream;
  cudaStream_t stream;  ///< the same
  cudaMemPool_t pool = nullptr;
  explicit GroupResources(const memory::Device& gpu);
  ~GroupResources();
  GroupResources(const GroupResources&) = delete;
  GroupResources& operator=(const GroupResources&) = delete;

  std::shared_ptr<void> allocate(std::size_t bytes, cudaStream_t on,
                                 const std::shared_ptr<GroupResources>& self) const;
};

/// Equal blocks of device memory for the small arrays of routings and handles. A block returns with
/// the last tensor that looks into it; work that uses it is ordered before the group's next call
/// (shoal/ep/group.hpp, Launch).
class BlockPool {
 public:
  BlockPool(std::size_t bytes, std::shared_ptr<GroupResources> resources);
  /// Allocates where no block is free: not while a stream is captured, before which reserve is
  /// called.
  std::shared_ptr<void> take();
  void reserve(std::size_t blocks);
  std::size_t block_bytes() const noexcept { return bytes_; }

 private:
  struct Blocks;
  std::size_t bytes_;
  std::shared_ptr<Blocks> blocks_;
};

/// Host memory that the GPU reads and writes; kept for the next user in place of being freed.
std::shared_ptr<void> take_pinned(std::size_t bytes);

struct CudaGroup {
  explicit CudaGroup(GroupState& owner);
  ~CudaGroup();
  CudaGroup(const CudaGroup&) = delete;
  CudaGroup& operator=(const CudaGroup&) = delete;

  GroupState& state;
  DeviceGroup device{};  ///< complete once the group has its memory (open)
  cudaStream_t stream = nullptr;
  std::shared_ptr<void> report_memory, device_memory;
  FaultReport* report = nullptr;  ///< host memory
  int multiprocessors = 0;
  int ranks_on_gpu = 1;  ///< of the group, this one included: they share its SMs
  std::shared_ptr<GroupResources> resources;
  cudaStream_t last_stream = nullptr;  ///< of the last call: calls of a group run one after another

  /// Makes the GPU current on this thread, and the stream of a call wait for Launch::after. To be
  /// called first by every call.
  cudaStream_t begin(const Launch& launch);
  /// Records Launch::done. To be called last. The caller may destroy its stream from now on.
  void end(const Launch& launch, cudaStream_t on);
  /// In a call that may still throw: later calls come behind what it has queued so far, whatever
  /// becomes of it.
  void record(cudaStream_t on) const;
  /// After the first of two kernels of a call: nothing may stand between them.
  void end_first() { check(cudaGetLastError(), "launch of a kernel"); }
  bool capturing(cudaStream_t on) const;
  /// Whether the last call was captured, and its stream still is.
  bool last_call_captures() const { return begun_.captured && capturing(begun_.on); }
  /// Throws where the GPU has reported that the group is beyond use. Other reports are for calls
  /// that wait: a call that threw them before its kernel is queued would get this member out of
  /// step.
  void throw_failed();
  /// Throws what the GPU has reported, if anything.
  void throw_reported();
  /// A member that has given its group up, as the GPU knows.
  std::optional<std::int32_t> ask_failed_member();
  /// Device memory of this GPU that lives as long as the returned pointer, in stream order behind
  /// the last call; contents undefined.
  std::shared_ptr<void> allocate(std::size_t bytes) const;
  /// A tensor in `memory`.
  Tensor tensor(const std::shared_ptr<void>& memory, std::size_t offset, DataType dtype,
                std::initializer_list<std::int64_t> shape) const;
  /// The elements of an optional tensor; nullptr where there is none. Kernels tell by it whether
  /// the call has one, so that of a member without tokens, whose tensor may have no memory, is some
  /// other address.
  template <typename T>
  const T* elements(const TensorView& tensor) const {
    if (!tensor.defined() || tensor.data != nullptr)
      return tensor.defined() ? tensor.as<T>() : nullptr;
    return reinterpret_cast<const T*>(device.memory);
  }
  /// Zeroes the control part of the block and points `device` at every member's block.
  void open();
  /// Waits for all calls; throws where the group is beyond use.
  void drain();
  /// As drain, and throws what was reported.
  void synchronize();

 private:
  cudaEvent_t between_ = nullptr;  // recorded behind each call on a stream of the caller
  bool under_way_ = true;  // calls, as far as is known: another stream would have to wait for them
  struct {
    cudaStream_t on = nullptr;
    bool captured = false;
  } begun_;  // the call that began last: the driver is asked once for whether its stream is
             // captured
};

}  // namespace shoal::ep::cuda
