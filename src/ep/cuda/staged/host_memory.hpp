// SPDX-License-Identifier: Apache-2.0
// host_memory.hpp: host memory that GPUs copy to and from at full speed, for groups whose rows go
// through the host. From and to ordinary memory the driver copies by way of its own, at a tenth of
// the speed.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace shoal::ep::cuda {

/// Pinned memory for inputs and outputs of calls. It returns here with its last owner and stays for
/// the next call.
class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  PinnedPool() = default;
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  /// Uninitialised. Throws Error{system} where the machine has no memory left to pin.
  std::shared_ptr<void> take(std::size_t bytes);

 private:
  std::mutex mutex_;
  std::multimap<std::size_t, void*> free_;  ///< by size
};

/// Where the first of several rows of equal length starts, and how far apart they are.
struct StridedRows {
  std::byte* start;
  std::size_t pitch;
};

/// A group's memory on the host, pinned piece by piece as copies touch it: most of it is room for
/// the worst case, whose pages cost nothing while nobody touches them. Where it cannot be pinned,
/// copies are merely slow.
class PinnedBlock {
 public:
  PinnedBlock(std::byte* start, std::size_t bytes);
  ~PinnedBlock() { unpin(); }
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;

  /// Starts the copy of `count` rows of `bytes` bytes on a stream. The host's side may also lie
  /// outside the block.
  void copy(StridedRows target, StridedRows source, std::size_t bytes, std::size_t count,
            cudaMemcpyKind kind, cudaStream_t stream);
  /// To be called before the memory is given back, when no copy is under way. What is copied later
  /// is pinned anew.
  void unpin() noexcept;

 private:
  std::size_t pin(const std::byte* host);

  std::byte* const start_;
  const std::size_t bytes_;
  std::vector<char> pinned_;  ///< by piece
  bool possible_ = true;
};

}  // namespace shoal::ep::cuda
