// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/window.hpp"

#include "base/check.hpp"

namespace shoal::memory::cuda {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<Token, std::weak_ptr<Window>> windows;

  static Registry& instance() {
    static auto* registry = new Registry;  // never destroyed: worlds may outlive static objects
    return *registry;
  }
};

}  // namespace

CUmemAllocationProp heap_properties(int device, CUmemAllocationHandleType handle, bool for_nics) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  properties.requestedHandleTypes = handle;
  properties.allocFlags.gpuDirectRDMACapable = for_nics ? 1 : 0;
  return properties;
}

CUresult export_fabric(const Driver& driver, int device, std::size_t granularity) {
  const CUmemAllocationProp properties = heap_properties(device, CU_MEM_HANDLE_TYPE_FABRIC);
  CUmemGenericAllocationHandle memory{};
  if (const CUresult result = driver.mem_create(&memory, granularity, &properties, 0);
      result != CUDA_SUCCESS)
    return result;
  CUmemFabricHandle handle{};
  const CUresult result = driver.mem_export(&handle, memory, CU_MEM_HANDLE_TYPE_FABRIC, 0);
  driver.mem_release(memory);
  return result;
}

std::shared_ptr<Window> Window::open(const Token& world, Pe n_pes, std::size_t stride,
                                     std::size_t alignment) {
  auto& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  std::weak_ptr<Window>& entry = registry.windows[world];
  auto window = entry.lock();
  if (!window) {
    window = std::shared_ptr<Window>(new Window(driver(), world, n_pes, stride, alignment));
    entry = window;
  }
  return window;
}

Window::Window(const Driver& driver, const Token& world, Pe n_pes, std::size_t stride,
               std::size_t alignment)
    : driver_(driver),
      world_(world),
      stride_(stride),
      bytes_(static_cast<std::size_t>(n_pes) * stride) {
  CUdeviceptr start{};
  check(driver_, driver_.address_reserve(&start, bytes_, alignment, 0, 0),
        fmt::format("SHOAL-N725: cannot reserve {} bytes of GPU addresses for the heaps of {} PEs",
                    bytes_, n_pes),
        "SHOAL_SYMMETRIC_SIZE");
  base_ = reinterpret_cast<std::byte*>(start);
}

Window::~Window() {
  {
    auto& registry = Registry::instance();
    const std::lock_guard lock(registry.mutex);
    const auto entry = registry.windows.find(world_);
    if (entry != registry.windows.end() && entry->second.expired()) registry.windows.erase(entry);
  }
  for (const auto& [where, bytes] : mapped_)
    driver_.mem_unmap(address(base(where.first) + where.second), bytes);
  driver_.address_free(address(base_), bytes_);
}

void Window::map(Pe pe, std::size_t offset, std::size_t bytes,
                 CUmemGenericAllocationHandle memory) {
  const std::lock_guard lock(mutex_);
  CUresult result = CUDA_SUCCESS;
  if (!mapped_.contains({pe, offset})) {
    result = driver_.mem_map(address(base(pe) + offset), bytes, 0, memory, 0);
    if (result == CUDA_SUCCESS) mapped_.emplace(std::pair(pe, offset), bytes);
  }
  driver_.mem_release(memory);  // the mapping keeps the memory
  check(driver_, result,
        fmt::format("SHOAL-N713: cannot map {} bytes of the symmetric heap of PE {}", bytes, pe));
}

CUresult Window::grant(Pe pe, std::size_t offset, int device) {
  const std::lock_guard lock(mutex_);
  const auto entry = mapped_.find({pe, offset});
  if (entry == mapped_.end()) return CUDA_ERROR_NOT_MAPPED;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return driver_.mem_set_access(address(base(pe) + offset), entry->second, &access, 1);
}

void Window::unmap(Pe pe, std::size_t offset) noexcept {
  const std::lock_guard lock(mutex_);
  const auto entry = mapped_.find({pe, offset});
  if (entry == mapped_.end()) return;
  driver_.mem_unmap(address(base(pe) + offset), entry->second);
  mapped_.erase(entry);
}

}  // namespace shoal::memory::cuda
