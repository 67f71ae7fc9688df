// SPDX-License-Identifier: Apache-2.0
// heap_registration.hpp: a heap in GPU memory, registered with the rails of a provider that
// accesses such memory (FI_HMEM).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/message/registered_heap.hpp"
#include "transport/ofi/rail.hpp"

namespace shoal::transport::ofi {

class HeapRegistration final : public message::RegisteredHeap<Registered, RemoteMemory, kMaxRails> {
 public:
  /// `rails`: at most kMaxRails; they outlive this. add() throws Error{unsupported} where
  /// SHOAL_OFI_GPU_MEMORY asks for a registration that is impossible.
  HeapRegistration(std::shared_ptr<memory::DeviceHeap> heap, const Settings& settings, Pe my_pe,
                   Pe n_pes, std::vector<Rail*> rails);

 private:
  std::vector<Registered> register_step(std::byte* start, std::size_t bytes) override;
  RemoteMemory name(const Registered& region, const std::byte* start) const override;
  void accept(const std::string& obstacle) const override;

  const std::string setting_;  ///< SHOAL_OFI_GPU_MEMORY
  const std::vector<Rail*> rails_;
};

}  // namespace shoal::transport::ofi
