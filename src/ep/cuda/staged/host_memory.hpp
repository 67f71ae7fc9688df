// SPDX-License-Identifier: Apache-2.0
// host_memory.hpp: pinned host memory, for groups whose rows pass through the host. The driver
// copies pageable memory through a buffer of its own, at a tenth of the speed.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace shoal::ep::cuda {

/// Pinned memory for inputs and outputs of calls. It returns to the pool with its last owner and is
/// reused.
class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  PinnedPool() = default;
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  /// Uninitialised memory. Throws Error{system} when no more memory can be pinned.
  std::shared_ptr<void> take(std::size_t bytes);

 private:
  std::mutex mutex_;
  std::multimap<std::size_t, void*> free_;  ///< by size
};

/// Rows of equal length: the start of the first one, and the distance between two.
struct StridedRows {
  std::byte* start;
  std::size_t pitch;
};

/// A group's memory on the host, pinned piece by piece as copies touch it. Most of it is room for
/// the worst case, whose pages cost nothing until they are used. Where memory cannot be pinned,
/// copies are slow but work.
class PinnedMemory {
 public:
  PinnedMemory(std::byte* start, std::size_t bytes);
  ~PinnedMemory() { unpin(); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  /// Starts the copy of `count` rows of `bytes` bytes on a stream. Host memory outside the block is
  /// allowed.
  void copy(StridedRows target, StridedRows source, std::size_t bytes, std::size_t count,
            cudaMemcpyKind kind, cudaStream_t stream);
  /// Unpins everything. Called before the memory is released, when no copy is in progress; later
  /// copies pin again.
  void unpin() noexcept;

 private:
  std::size_t pin(const std::byte* host);

  std::byte* const start_;
  const std::size_t bytes_;
  std::vector<char> pinned_;  ///< by piece
  bool possible_ = true;
};

}  // namespace shoal::ep::cuda
