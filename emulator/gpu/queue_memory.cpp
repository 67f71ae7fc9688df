// SPDX-License-Identifier: Apache-2.0
#include "gpu/queue_memory.hpp"

#include <bit>

#include "gpu/cuda.hpp"

namespace shoal::emulator::gpu {

QueueMemory::QueueMemory(int device, std::uint32_t blocks, bool collapsed)
    : blocks_(blocks),
      log_entries_(collapsed ? 0 : static_cast<std::uint32_t>(std::countr_zero(blocks))) {
  constexpr std::size_t kWords = 256;
  const OnDevice on(device);
  const std::size_t ring = blocks_ * mlx5::kBlockBytes;
  const std::size_t entries = (std::size_t{1} << log_entries_) * sizeof(mlx5::CompletionEntry);
  check(cudaMalloc(reinterpret_cast<void**>(&memory_), ring + entries + kWords),
        "allocating a queue");
  check(cudaMemset(memory_, 0, ring + entries + kWords), "clearing a queue");
  check(cudaMemset(entry_bytes(), mlx5::kUnusedEntry, entries), "clearing a queue");
  check(cudaStreamSynchronize(nullptr), "clearing a queue");
}

QueueMemory::~QueueMemory() {
  cudaFree(memory_);
}

}  // namespace shoal::emulator::gpu
