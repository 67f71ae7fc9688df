// SPDX-License-Identifier: Apache-2.0
// queue_memory.hpp: the memory of a send queue and of its completions on a GPU, for clients of the
// NIC that is a kernel.
//
//   QueueMemory memory(device, 64, false);
//   nic.add_completion_queue(memory.entry_bytes(), memory.log_entries(), false);
//   nic.add_queue_pair({.ring = memory.ring_bytes(), .blocks = 64, .record = memory.sends(), ...});
#pragma once

#include "shoal/device/detail/mlx5/format.hpp"

namespace shoal::emulator::gpu {

class QueueMemory {
 public:
  /// Entries are marked as unused; all else is zero. `collapsed`: one entry, else one per block.
  /// Throws std::runtime_error. Not while a NIC runs.
  QueueMemory(int device, std::uint32_t blocks, bool collapsed);
  /// Waits for the whole GPU.
  ~QueueMemory();
  QueueMemory(const QueueMemory&) = delete;
  QueueMemory& operator=(const QueueMemory&) = delete;

  mlx5::Segment* ring() const { return reinterpret_cast<mlx5::Segment*>(memory_); }
  std::byte* ring_bytes() const { return memory_; }
  mlx5::CompletionEntry* entries() const {
    return reinterpret_cast<mlx5::CompletionEntry*>(entry_bytes());
  }
  std::byte* entry_bytes() const { return memory_ + blocks_ * mlx5::kBlockBytes; }
  std::uint32_t log_entries() const { return log_entries_; }
  std::uint32_t* sends() const { return &reinterpret_cast<mlx5::DoorbellRecord*>(words())->sends; }
  /// What stands for the doorbell register. The NIC does not look at it.
  std::uint64_t* doorbell() const { return reinterpret_cast<std::uint64_t*>(words() + 64); }
  /// 128 zeroed bytes for the users of the queue.
  std::byte* shared() const { return words() + 128; }

 private:
  std::byte* words() const {
    return entry_bytes() + (std::size_t{1} << log_entries_) * sizeof(mlx5::CompletionEntry);
  }

  std::byte* memory_ = nullptr;
  std::size_t blocks_;
  std::uint32_t log_entries_;
};

}  // namespace shoal::emulator::gpu
