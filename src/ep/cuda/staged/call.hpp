// SPDX-License-Identifier: Apache-2.0
// call.hpp: the copies between GPU and host that a call of a staged group makes.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/check.hpp"
#include "ep/cuda/group/resources.hpp"
#include "ep/cuda/staged/host_memory.hpp"
#include "ep/group/aligned_rows.hpp"
#include "ep/group/modes.hpp"
#include "pe/memory.hpp"

namespace shoal::ep::cuda {

/// The calls of a group share these: its GPU, stream, buffers in host memory.
struct Staging {
  explicit Staging(detail::GroupState& owner)
      : group(owner),
        gpu(std::make_shared<GroupResources>(*owner.world->memory().cuda())),
        stream(gpu->stream) {}

  detail::GroupState& group;
  const std::shared_ptr<GroupResources> gpu;
  cudaStream_t stream;  ///< of calls that name none
  const std::shared_ptr<PinnedPool> pool = std::make_shared<PinnedPool>();
  std::optional<PinnedMemory> block;  ///< set when the group has its memory
};

/// The backend of a staged group, which wraps that of the host.
std::unique_ptr<detail::Backend> make_staged_backend(Staging& staging);

/// One call of a staged group: its stream, its copies and its events.
class StagedCall {
 public:
  StagedCall(Staging& staging, const Launch& launch)
      : staging_(staging),
        launch_(launch),
        stream_(launch.stream != nullptr ? static_cast<cudaStream_t>(launch.stream)
                                         : staging.stream) {
    staging.group.world->memory().cuda()->activate();
    cudaStreamCaptureStatus capture{};
    check(cudaStreamIsCapturing(stream_, &capture), "state of a stream");
    require(
        capture == cudaStreamCaptureStatusNone, Code::unsupported,
        "SHOAL-N538: a group whose ranks are on several nodes passes rows through the host, which "
        "a captured stream cannot");
    if (launch.after != nullptr)
      check(cudaStreamWaitEvent(stream_, static_cast<cudaEvent_t>(launch.after), 0),
            "Launch::after");
  }

  /// Starts the copy of a tensor of one or two dimensions to `target`, where it becomes contiguous.
  /// Does nothing for an undefined tensor.
  void fetch(void* target, const ConstTensorView& from) const {
    if (!from.defined() || from.bytes() == 0) return;
    const std::size_t element = size_of(from.dtype);
    if (from.rank == 2 && from.shape[1] > 1 && from.strides[1] != 1)
      return fetch_columns(target, from);
    const std::size_t columns = from.rank == 1 ? 1 : from.shape[1];
    fetch_rows({static_cast<std::byte*>(target), columns * element},
               {detail::for_reading(from).as<std::byte>(), from.strides[0] * element},
               columns * element, from.shape[0]);
  }
  Tensor fetch(const ConstTensorView& from) const {
    Tensor copy = place_for(from);
    fetch(copy.data, from);
    return copy;
  }
  /// Pinned memory for a tensor like this one. Statistics are fetched into it only when the call
  /// adds to them, because an earlier call can still be open.
  Tensor place_for(const ConstTensorView& from) const {
    if (!from.defined()) return {};
    return from.rank == 1 ? on_host(from.dtype, {from.shape[0]})
                          : on_host(from.dtype, {from.shape[0], from.shape[1]});
  }
  void fetch_rows(StridedRows target, StridedRows source, std::size_t bytes,
                  std::size_t count) const {
    staging_.block->copy(target, source, bytes, count, cudaMemcpyDeviceToHost, stream_);
  }
  /// An uninitialised tensor in pinned memory.
  Tensor on_host(DataType dtype, std::initializer_list<std::int64_t> extents) const {
    TensorView view(nullptr, dtype, extents);
    auto memory = staging_.pool->take(view.bytes());
    view.data = memory.get();
    return Tensor(view, std::move(memory));
  }
  /// Waits for everything fetched.
  void fetched() const { check(cudaStreamSynchronize(stream_), "copies to the host"); }

  /// A tensor like this one on the GPU; undefined for an undefined one.
  Tensor make(const ConstTensorView& like) const {
    if (!like.defined()) return {};
    auto memory = staging_.gpu->allocate(
        std::max<std::size_t>(like.size() * size_of(like.dtype), 1), stream_, staging_.gpu);
    TensorView view(memory.get(), like);
    view.device = staging_.group.device;
    return Tensor(view, std::move(memory));
  }
  /// A tensor like this one in GPU memory that is kept from call to call. The first call allocates
  /// `bytes` and waits for the allocation, because later calls can come on other streams.
  Tensor keep(Tensor& memory, const ConstTensorView& like, std::size_t bytes) const {
    if (!like.defined()) return {};
    if (!memory.defined()) {
      memory = make(TensorView(nullptr, DataType::uint8, {static_cast<std::int64_t>(bytes)}));
      check(cudaStreamSynchronize(stream_), "memory of results");
    }
    TensorView view(memory.data, like);
    view.device = staging_.group.device;
    return Tensor(view, memory.owner);
  }
  Tensor give_kept(Tensor& memory, const ConstTensorView& from) const {
    Tensor copy = keep(memory, from, from.bytes());
    give(copy.data, from.data, from.bytes());
    return copy;
  }
  /// A GPU tensor with the contents of a contiguous host tensor.
  Tensor give(const ConstTensorView& from) const {
    Tensor copy = make(from);
    if (from.defined()) give(copy.data, from.data, from.bytes());
    return copy;
  }
  void give(void* target, const void* source, std::size_t bytes) const {
    give_rows(target, bytes, source, bytes, bytes, 1);
  }
  /// Starts the copy of `rows` rows of `bytes` bytes at these pitches.
  void give_rows(void* target, std::size_t target_pitch, const void* source,
                 std::size_t source_pitch, std::size_t bytes, std::size_t rows) const {
    staging_.block->copy({static_cast<std::byte*>(target), target_pitch},
                         {static_cast<std::byte*>(const_cast<void*>(source)), source_pitch}, bytes,
                         rows, cudaMemcpyHostToDevice, stream_);
  }
  /// Ends the call: records Launch::done and waits for all copies, so that host memory can be
  /// reused.
  void finish() const {
    if (launch_.done != nullptr)
      check(cudaEventRecord(static_cast<cudaEvent_t>(launch_.done), stream_), "Launch::done");
    check(cudaStreamSynchronize(stream_), "copies to the GPU");
  }

  cudaStream_t stream() const { return stream_; }

 private:
  /// Column by column, for scales whose tokens are contiguous.
  void fetch_columns(void* target, const ConstTensorView& from) const {
    const std::size_t element = size_of(from.dtype);
    for (std::int64_t column = 0; column < from.shape[1]; ++column)
      check(cudaMemcpy2DAsync(
                static_cast<std::byte*>(target) + column * element, from.shape[1] * element,
                from.as<std::byte>() + column * from.strides[1] * element,
                from.strides[0] * element, element, from.shape[0], cudaMemcpyDeviceToHost, stream_),
            "copy to the host");
  }

  Staging& staging_;
  const Launch launch_;
  cudaStream_t stream_;
};

}  // namespace shoal::ep::cuda
