// SPDX-License-Identifier: Apache-2.0
// heap_copies.hpp: copies and kernels on streams, for heaps that this PE's GPU maps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "memory/cuda/copies.hpp"
#include "memory/device_heap.hpp"
#include "transport/cuda_p2p/word_kernels.hpp"

namespace shoal::transport {

/// Base of CudaP2pTransport and CopyPipeline.
class HeapCopies {
 public:
  HeapCopies(const HeapCopies&) = delete;
  HeapCopies& operator=(const HeapCopies&) = delete;

 protected:
  /// Pins kWords words. Throws Error{system}.
  explicit HeapCopies(std::shared_ptr<memory::DeviceHeap> heap);
  ~HeapCopies();

  std::byte* at(Pe pe, std::size_t offset) const { return heap_->base(pe) + offset; }
  /// Starts a copy on a stream. Throws Error{system} naming `what` and the PE.
  void copy(CUstream stream, void* target, const void* source, std::size_t bytes, const char* what,
            Pe pe) const;
  /// Throws Error{system} where a launcher of WordKernels returned a failure.
  void started(const char* failure, const char* what) const;
  /// True if a put is of one aligned word that the host can read. A copy may arrive in pieces, but
  /// a polling reader must never see half a word.
  bool is_host_word(std::size_t offset, const void* source, std::size_t bytes) const {
    return (bytes == 4 || bytes == 8) && offset % bytes == 0 &&
           !memory::cuda::on_gpu(driver_, source);
  }

  static constexpr std::size_t kWords = 2;

  const memory::cuda::Driver& driver_;
  const WordKernels& kernels_;
  const std::shared_ptr<memory::DeviceHeap> heap_;
  const memory::Device& device_;
  std::uint64_t* words_ = nullptr;  ///< pinned, zero at first; word 0 has the results of atomics
};

}  // namespace shoal::transport
