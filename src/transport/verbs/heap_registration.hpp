// SPDX-License-Identifier: Apache-2.0
// heap_registration.hpp: this PE's heap in GPU memory, registered with its ports, and the heaps of
// its peers.
//
// Each step of the heap's growth is registered once with every port: as a dma-buf that the CUDA
// driver exports, or by its address, which the kernel module nvidia-peermem translates. A step that
// one of the ports refuses is not registered at all; its data then pass through host memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "memory/device_heap.hpp"
#include "transport/message/network.hpp"
#include "transport/verbs/port.hpp"

namespace shoal::transport::verbs {

class HeapRegistration final : public message::HeapRegistration {
 public:
  /// `ports`: at most kMaxConnections; they outlive this. Throws Error{unsupported} where
  /// SHOAL_VERBS_GPU_MEMORY asks for a registration that is impossible.
  HeapRegistration(std::shared_ptr<memory::DeviceHeap> heap, const Settings& settings, Pe my_pe,
                   Pe n_pes, std::vector<const Port*> ports);

  std::vector<std::byte> add(std::size_t offset, std::size_t bytes) override;
  void connect(Pe pe, std::span<const std::byte> blob) override;
  void roll_back(std::size_t offset) noexcept override;
  std::size_t piece(Pe pe, std::size_t offset, const std::byte* local,
                    std::size_t bytes) const override;
  std::string describe(Pe pe) const override;

  /// Start of this PE's heap.
  const std::byte* base() const noexcept { return heap_->base(my_pe_); }
  /// Bytes from the start of the heaps of this PE and of `pe` that are registered on both; 0: none.
  std::size_t first_step(Pe pe) const;
  /// Whether memory of this process lies in this PE's heap.
  bool contains(const std::byte* local) const noexcept;
  // For ranges that piece() accepted; `port` is an index of ports.
  std::uint32_t local_key(const std::byte* local, std::size_t port) const noexcept;
  RemoteMemory remote(Pe pe, std::size_t offset, std::size_t port) const noexcept;

 private:
  struct Step {
    std::size_t offset, bytes;
    std::vector<MemoryRegion> regions;  ///< by port; empty: not registered
  };
  struct RemoteStep {
    std::size_t offset, bytes;
    std::vector<RemoteMemory> memory;  ///< by port; empty: not registered
  };

  std::vector<MemoryRegion> register_step(std::byte* start, std::size_t bytes);
  std::vector<MemoryRegion> register_dma_buf(std::byte* start, std::size_t bytes) const;
  /// `reasons`: why other ways failed, for the error.
  std::vector<MemoryRegion> register_by_address(std::byte* start, std::size_t bytes,
                                                const char* what,
                                                const std::string& reasons = "") const;
  const Step* find(const std::byte* local) const noexcept;

  const std::shared_ptr<memory::DeviceHeap> heap_;
  const std::string setting_;  ///< SHOAL_VERBS_GPU_MEMORY
  const Pe my_pe_;
  const std::vector<const Port*> ports_;
  std::string obstacle_;     ///< why the newest step is not registered; empty: it is
  std::string method_;       ///< of the newest registration
  std::vector<Step> steps_;  ///< by offset
  std::vector<std::vector<RemoteStep>> remote_;  ///< by PE, by offset
};

}  // namespace shoal::transport::verbs
