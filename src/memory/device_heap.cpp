// SPDX-License-Identifier: Apache-2.0
// Parts shared by builds with and without CUDA, and the errors of the latter.
#include "memory/device_heap.hpp"

#include <algorithm>

#include "base/align.hpp"
#include "base/check.hpp"
#include "memory/shared_buffers.hpp"
#ifdef SHOAL_WITH_CUDA
#include "memory/cuda_backend.hpp"
#endif

namespace shoal::memory {
namespace {

// A mapping takes about a millisecond: not for every allocation.
constexpr std::size_t kLeastStep = std::size_t{64} << 20;

template <typename Has>
void require_all(std::span<const DeviceDescription> devices, const char* setting, const char* what,
                 Has&& has) {
  const auto lacks = std::find_if_not(devices.begin(), devices.end(), has);
  require(lacks == devices.end(), Code::unsupported,
          "SHOAL-N732: SHOAL_CUDA_HANDLE is {}, but the GPU of PE {} {}", setting,
          lacks - devices.begin(), what);
}

}  // namespace

std::string_view name_of(HandleKind kind) noexcept {
  constexpr std::string_view names[] = {"fd", "fabric", "ipc", "pinned"};
  return names[static_cast<std::size_t>(kind)];
}

HandleKind choose_handle(std::string_view setting, std::span<const DeviceDescription> devices,
                         std::span<const std::int32_t> host_of) {
  const auto with_fd = [](const DeviceDescription& one) {
    return one.has_vmm != 0 && one.has_fd != 0;
  };
  const auto with_fabric = [](const DeviceDescription& one) {
    return one.has_vmm != 0 && one.has_fabric != 0;
  };
  if (setting == "ipc") return HandleKind::ipc;
  if (setting == "pinned") return HandleKind::pinned;
  if (setting == "fd") {
    require_all(devices, "fd", "does not pass memory as file descriptors; allowed: ipc, automatic",
                with_fd);
    return HandleKind::fd;
  }
  if (setting == "fabric") {
    require_all(devices, "fabric",
                "does not pass memory as fabric handles; allowed: fd, ipc, automatic", with_fabric);
    return HandleKind::fabric;
  }
  const bool one_host = std::all_of(host_of.begin(), host_of.end(),
                                    [&](auto host) { return host == host_of.front(); });
  if (!one_host && std::all_of(devices.begin(), devices.end(), with_fabric))
    return HandleKind::fabric;
  return std::all_of(devices.begin(), devices.end(), with_fd) ? HandleKind::fd : HandleKind::ipc;
}

std::size_t device_heap_unit(std::span<const DeviceDescription> devices) noexcept {
  std::size_t unit = Segment::kAlignment;  // granularities are powers of two
  for (const DeviceDescription& device : devices)
    unit = std::max<std::size_t>(unit, device.granularity);
  return unit;
}

std::size_t device_heap_bytes(std::size_t symmetric_size,
                              std::span<const DeviceDescription> devices) noexcept {
  return align_up(symmetric_size, device_heap_unit(devices));
}

std::size_t DeviceHeap::step(std::size_t bytes) const noexcept {
  return std::min(size_, align_up(std::max(bytes, mapped_ + kLeastStep), unit_));
}

#ifdef SHOAL_WITH_CUDA
std::shared_ptr<Device> open_device(const DeviceRequest& request) {
  return cuda::open_device(request);
}
GpuReport describe_gpus() {
  return cuda::describe_gpus();
}
std::unique_ptr<DeviceHeap> make_device_heap(DeviceHeapContext context) {
  if (context.handle == HandleKind::ipc) return cuda::make_ipc_heap(std::move(context));
  if (context.handle == HandleKind::pinned) return cuda::make_pinned_heap(std::move(context));
  return cuda::make_mapped_heap(std::move(context));
}
std::unique_ptr<SharedBuffers> make_shared_buffers(std::shared_ptr<Device> device) {
  return cuda::make_shared_buffers(std::move(device));
}
#else
namespace {
constexpr const char* kWithoutCuda =
    "this build of Shoal has no CUDA (it was configured without a CUDA compiler, or "
    "with SHOAL_CUDA=OFF)";
}
std::shared_ptr<Device> open_device(const DeviceRequest&) {
  fail(Code::unsupported, "SHOAL-N706: SHOAL_HEAP is cuda, but {}; allowed: host", kWithoutCuda);
}
GpuReport describe_gpus() {
  return {{}, kWithoutCuda, 0};
}
std::unique_ptr<DeviceHeap> make_device_heap(DeviceHeapContext) {
  fail(Code::unsupported, "SHOAL-N706: {}", kWithoutCuda);
}
std::unique_ptr<SharedBuffers> make_shared_buffers(std::shared_ptr<Device>) {
  fail(Code::unsupported, "SHOAL-N706: {}", kWithoutCuda);
}
#endif

}  // namespace shoal::memory
