// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/heap_registration.hpp"

#include <utility>

#include "base/check.hpp"

namespace shoal::transport::verbs {

HeapRegistration::HeapRegistration(std::shared_ptr<memory::DeviceHeap> heap,
                                   const Settings& settings, Pe my_pe, Pe n_pes,
                                   std::vector<const Port*> ports)
    : RegisteredHeap(std::move(heap), "verbs", my_pe, n_pes),
      setting_(settings.verbs_gpu_memory),
      ports_(std::move(ports)) {}

void HeapRegistration::accept(const std::string& obstacle) const {
  require(
      setting_ == "automatic" || setting_ == "off", Code::unsupported,
      "SHOAL-N384: SHOAL_VERBS_GPU_MEMORY is {}, but {}; allowed: automatic, dmabuf, peermem, off",
      setting_, obstacle);
}

RemoteMemory HeapRegistration::name(const MemoryRegion& region, const std::byte* start) const {
  return {reinterpret_cast<std::uintptr_t>(start), region.handle->rkey};
}

/// Registers by dma-buf, else by address, as far as the setting allows. Throws Error with the
/// reasons.
std::vector<MemoryRegion> HeapRegistration::register_step(std::byte* start, std::size_t bytes) {
  require(setting_ != "off", Code::unsupported, "SHOAL-N385: SHOAL_VERBS_GPU_MEMORY is off");
  if (heap().on_host()) {
    set_method("host memory");
    return register_by_address(start, bytes, "pinned host memory");
  }
  const memory::NicAccess access = heap().device().nic_access();
  require(access.obstacle.empty(), Code::unsupported, "{}", access.obstacle);
  for (const Port* const port : ports_)
    require(!port->is_software(), Code::unsupported, "SHOAL-N385: {} is a device in software",
            port->label());
  std::string reasons;
  if (setting_ != "peermem") {
    try {
      std::vector<MemoryRegion> regions = register_dma_buf(start, bytes);
      set_method("dma-buf");
      return regions;
    } catch (const Error& error) {
      if (setting_ == "dmabuf") throw;
      reasons = fmt::format("{}; ", error.reason());
    }
  }
  set_method("peer memory");
  return register_by_address(start, bytes, "GPU memory", reasons);
}

std::vector<MemoryRegion> HeapRegistration::register_by_address(std::byte* start, std::size_t bytes,
                                                                const char* what,
                                                                const std::string& reasons) const {
  std::vector<MemoryRegion> regions;
  for (const Port* const port : ports_) {
    MemoryRegion region = port->register_address(start, bytes);
    require(region.handle != nullptr, Code::unsupported,
            "SHOAL-N405: {}{} bytes of {} cannot be registered with {} by their address: {}{}. "
            "Setting: SHOAL_VERBS_GPU_MEMORY",
            reasons, bytes, what, port->label(), error_text(errno),
            heap().on_host() ? "" : " (kernel module nvidia-peermem)");
    regions.push_back(std::move(region));
  }
  return regions;
}

/// The regions keep the memory of the dma-buf; its descriptor is closed.
std::vector<MemoryRegion> HeapRegistration::register_dma_buf(std::byte* start,
                                                             std::size_t bytes) const {
  for (const Port* const port : ports_)
    require(port->library().reg_dmabuf_mr != nullptr, Code::unsupported,
            "SHOAL-N404: {} has no ibv_reg_dmabuf_mr (since rdma-core 34)", port->library().file);
  const memory::FileDescriptor exported = heap().device().export_dma_buf(start, bytes);
  std::vector<MemoryRegion> regions;
  for (const Port* const port : ports_)
    regions.push_back(port->register_dma_buf(exported.get(), start, bytes));
  return regions;
}

}  // namespace shoal::transport::verbs
