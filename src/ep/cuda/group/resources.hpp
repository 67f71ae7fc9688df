// SPDX-License-Identifier: Apache-2.0
// resources.hpp: the stream and the memory of a group on its GPU.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace shoal::memory {
class Device;
}

namespace shoal::ep::cuda {

/// Throws Error{system} with CUDA's reason, naming the call, unless `status` is success.
void check(cudaError_t status, const char* what);

/// True if a CUDA graph captures the stream.
bool is_capturing(cudaStream_t stream) noexcept;

/// Polls `query` until it no longer returns cudaErrorNotReady, and asks about every millisecond
/// whether the wait was interrupted: Error{system} naming `what`. Returns the last result.
cudaError_t poll_while_not_ready(const std::function<cudaError_t()>& query, const char* what);

/// A high-priority stream that does not synchronise with the null stream, and a pool of device
/// memory. A group keeps both until all memory of the pool is freed; then later groups reuse them.
/// Nothing here synchronises the device: other PEs on this GPU can be waiting for this one.
///
/// No other group has the pool meanwhile, because its memory is used on the streams of calls. Those
/// are ordered one after the other (CudaGroup::begin), on whatever stream the memory is freed.
struct GroupResources {
  std::shared_ptr<CUstream_st> taken_stream;
  cudaStream_t stream;  ///< taken_stream.get()
  cudaMemPool_t pool = nullptr;
  int device = 0;
  const memory::Device& gpu;  ///< as long as the world is open, which calls need
  explicit GroupResources(const memory::Device& owner);
  ~GroupResources();
  GroupResources(const GroupResources&) = delete;
  GroupResources& operator=(const GroupResources&) = delete;

  /// Memory in stream order on `on`, which is not captured; contents undefined. `self` is this
  /// object.
  std::shared_ptr<void> allocate(std::size_t bytes, cudaStream_t on,
                                 const std::shared_ptr<GroupResources>& self) const;
  /// Memory for the group's next calls, on any stream; contents undefined. Works while this thread
  /// captures a graph, in every capture mode: the memory is no part of the graph. An allocation
  /// node would not do, because its memory belongs to one graph and ends with each replay, whereas
  /// a dispatch and its combine may be in two graphs, or one of them in none.
  std::shared_ptr<void> allocate_apart(std::size_t bytes,
                                       const std::shared_ptr<GroupResources>& self) const;

 private:
  void free(void* memory);
  bool captured() const;  ///< the stream, by a graph

  std::mutex mutex_;
  std::vector<void*> freed_;  ///< still to be freed: the stream was captured
};

/// Blocks of device memory of one size, for the small arrays of routings and handles. A block
/// returns with the last tensor that refers to it; work that uses it is ordered before the group's
/// next call (Launch in shoal/ep/group.hpp).
class ArrayPool {
 public:
  ArrayPool(std::size_t bytes, std::shared_ptr<GroupResources> resources);
  /// A free block. Allocates where there is none, also while this thread captures a graph.
  std::shared_ptr<void> take();
  /// Makes sure that so many blocks are free.
  void reserve(std::size_t blocks);

 private:
  struct Shared;
  std::size_t bytes_;
  std::shared_ptr<Shared> shared_;
};

/// Device memory of results. Keeps a few blocks that were released last for calls that need the
/// same number of bytes: the driver takes a microsecond or more for each of an allocation and its
/// release. Work that uses a block is ordered as with ArrayPool.
class RecentMemory {
 public:
  explicit RecentMemory(std::shared_ptr<GroupResources> resources);
  /// Memory in stream order on `on`; contents undefined.
  std::shared_ptr<void> take(std::size_t bytes, cudaStream_t on) const;

 private:
  struct Kept;
  std::shared_ptr<GroupResources> resources_;
  std::shared_ptr<Kept> kept_;
};

/// Zeroed host memory that the GPU reads and writes. It is kept for the next user and never freed.
std::shared_ptr<void> take_pinned(std::size_t bytes);

}  // namespace shoal::ep::cuda
