// SPDX-License-Identifier: Apache-2.0
// heap_rma.hpp: puts and gets of a network on heaps in GPU memory, where the NIC reads and writes
// that memory itself. Only data: words and atomics of such heaps belong to the GPUs.
//
// Transport::gpu_access() returns it; the transport `staged` uses it in place of its copies through
// host memory. Memory is added in collective steps, as in memory/device_heap.hpp: every PE calls
// add, the blobs are exchanged, and every PE calls connect, or roll_back if one failed.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "shoal/heap.hpp"

namespace shoal::transport {

class HeapRma {
 public:
  virtual ~HeapRma() = default;

  static constexpr std::size_t kBlobBytes = 640;
  /// Registers bytes [offset, offset + bytes) of this PE's heap. Returns at most kBlobBytes bytes.
  /// Where that is impossible, nothing is registered; Error{unsupported} if the settings ask for
  /// it.
  virtual std::vector<std::byte> add(std::size_t offset, std::size_t bytes) = 0;
  /// `blobs`: by PE. Those of PEs that this network does not connect are ignored.
  virtual void connect(std::span<const std::vector<std::byte>> blobs) = 0;
  /// Unregisters what was added from `offset` on.
  virtual void roll_back(std::size_t offset) noexcept = 0;

  /// True if these bytes of the heap of `pe` can be copied to or from `local`, which is host memory
  /// or in this PE's heap.
  virtual bool reaches(Pe pe, std::size_t offset, const void* local, std::size_t bytes) = 0;
  /// "by RDMA (dma-buf)", or "through host memory: GPU 0 has no GPUDirect RDMA".
  virtual std::string describe(Pe pe) = 0;

  // Like the operations of Transport, for ranges that reaches() accepts.
  virtual void put(Pe pe, std::size_t offset, const void* source, std::size_t bytes) = 0;
  virtual void get(void* target, Pe pe, std::size_t offset, std::size_t bytes) = 0;
  virtual void put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) = 0;
  virtual void get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) = 0;
};

}  // namespace shoal::transport
