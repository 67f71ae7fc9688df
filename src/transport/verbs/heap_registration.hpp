// SPDX-License-Identifier: Apache-2.0
// heap_registration.hpp: how a heap in GPU memory is registered with ports: as a dma-buf that the
// CUDA driver exports, or by its address, which the kernel module nvidia-peermem translates.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/message/registered_heap.hpp"
#include "transport/verbs/port/port.hpp"

namespace shoal::transport::verbs {

class HeapRegistration final
    : public message::RegisteredHeap<MemoryRegion, RemoteMemory, kMaxConnections> {
 public:
  /// `ports`: at most kMaxConnections; they outlive this. add() throws Error{unsupported} where
  /// SHOAL_VERBS_GPU_MEMORY asks for a registration that is impossible.
  HeapRegistration(std::shared_ptr<memory::DeviceHeap> heap, const Settings& settings, Pe my_pe,
                   Pe n_pes, std::vector<const Port*> ports);

  /// For ranges that piece() accepted; `port` is an index of ports.
  std::uint32_t local_key(const std::byte* local, std::size_t port) const noexcept {
    return region(local, port).local_key();
  }

 private:
  std::vector<MemoryRegion> register_step(std::byte* start, std::size_t bytes) override;
  RemoteMemory name(const MemoryRegion& region, const std::byte* start) const override;
  void accept(const std::string& obstacle) const override;
  std::vector<MemoryRegion> register_dma_buf(std::byte* start, std::size_t bytes) const;
  /// `reasons`: why other ways failed, for the error.
  std::vector<MemoryRegion> register_by_address(std::byte* start, std::size_t bytes,
                                                const char* what,
                                                const std::string& reasons = "") const;

  const std::string setting_;  ///< SHOAL_VERBS_GPU_MEMORY
  const std::vector<const Port*> ports_;
};

}  // namespace shoal::transport::verbs
