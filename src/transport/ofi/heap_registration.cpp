// SPDX-License-Identifier: Apache-2.0
#include "transport/ofi/heap_registration.hpp"

#include <utility>

#include "base/check.hpp"

namespace shoal::transport::ofi {

HeapRegistration::HeapRegistration(std::shared_ptr<memory::DeviceHeap> heap,
                                   const Settings& settings, Pe my_pe, Pe n_pes,
                                   std::vector<Rail*> rails)
    : RegisteredHeap(std::move(heap), "ofi", my_pe, n_pes),
      setting_(settings.ofi_gpu_memory),
      rails_(std::move(rails)) {}

void HeapRegistration::accept(const std::string& obstacle) const {
  require(setting_ != "hmem", Code::unsupported,
          "SHOAL-N330: SHOAL_OFI_GPU_MEMORY is hmem, but {}; allowed: automatic, hmem, off",
          obstacle);
}

RemoteMemory HeapRegistration::name(const Registered& region, const std::byte*) const {
  return region.remote;
}

std::vector<Registered> HeapRegistration::register_step(std::byte* start, std::size_t bytes) {
  require(setting_ != "off", Code::unsupported, "SHOAL-N331: SHOAL_OFI_GPU_MEMORY is off");
  const bool on_host = heap().on_host();
  set_method(on_host ? "host memory" : "FI_HMEM");
  if (!on_host) {
    for (const Rail* const rail : rails_)
      require(rail->accesses_gpus(), Code::unsupported,
              "SHOAL-N330: provider {} does not access GPU memory on {} (FI_HMEM)",
              rail->provider(), rail->domain());
    const memory::NicAccess access = heap().device().nic_access();
    require(access.obstacle.empty(), Code::unsupported, "{}", access.obstacle);
  }
  std::vector<Registered> regions;
  for (Rail* const rail : rails_)
    regions.push_back(rail->register_memory(start, bytes, Peers::access,
                                            on_host ? Rail::kHost : heap().device().device));
  return regions;
}

}  // namespace shoal::transport::ofi
