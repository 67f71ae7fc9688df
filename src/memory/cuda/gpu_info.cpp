// SPDX-License-Identifier: Apache-2.0
// The report of shoal-info about the GPUs of this machine.
#include "base/check.hpp"
#include "memory/cuda/driver.hpp"
#include "memory/cuda/window.hpp"
#include "memory/cuda_backend.hpp"

namespace shoal::memory::cuda {
namespace {

CUresult try_fabric(const Driver& driver, int ordinal) {
  const CUmemAllocationProp properties = heap_properties(ordinal, CU_MEM_HANDLE_TYPE_FABRIC);
  std::size_t granularity = 0;
  const CUresult result =
      driver.granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  return result == CUDA_SUCCESS ? export_fabric(driver, ordinal, granularity) : result;
}

GpuInfo describe_gpu(const Driver& driver, int ordinal, int count) {
  GpuInfo info;
  CUdevice device{};
  if (driver.device_get(&device, ordinal) != CUDA_SUCCESS) return info;
  const auto attribute = [&](CUdevice_attribute which) {
    int value = 0;
    return driver.device_attribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
  };
  char text[256] = "";
  if (driver.device_name(text, sizeof text, device) == CUDA_SUCCESS) info.name = text;
  if (driver.device_pci(text, sizeof text, device) == CUDA_SUCCESS) info.pci = text;
  std::size_t bytes = 0;
  if (driver.device_memory(&bytes, device) == CUDA_SUCCESS) info.memory = bytes;
  info.multiprocessors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  info.compute_capability = 10 * attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                            attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  info.has_vmm = attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0;
  info.has_fd = attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0;
  if (info.has_vmm && attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) != 0) {
    const CUresult result = try_fabric(driver, ordinal);
    info.has_fabric = result == CUDA_SUCCESS;
    if (!info.has_fabric) info.fabric_refused = describe(driver, result);
  }
  info.multicast = attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED) != 0;
  info.stream_memory_ops = attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) != 0;
  for (int other = 0; other < count; ++other) {
    CUdevice there{};
    int reaches = 0, atomics = 0;
    if (other == ordinal) {
      info.peers.emplace_back("self");
    } else if (driver.device_get(&there, other) != CUDA_SUCCESS ||
               driver.can_access_peer(&reaches, device, there) != CUDA_SUCCESS || reaches == 0) {
      info.peers.emplace_back("no");
    } else {
      const bool native =
          driver.p2p_attribute(&atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, device,
                               there) == CUDA_SUCCESS &&
          atomics != 0;
      info.peers.emplace_back(native ? "yes" : "yes, no atomics");
    }
  }
  return info;
}

}  // namespace

GpuReport describe_gpus() {
  GpuReport report;
  const Driver* const driver = find_driver(&report.unavailable);
  if (driver == nullptr) return report;
  driver->driver_version(&report.driver_version);
  int count = 0;
  if (const CUresult result = driver->device_count(&count); result != CUDA_SUCCESS || count == 0) {
    report.unavailable =
        result == CUDA_SUCCESS ? "the CUDA driver reports no GPU" : describe(*driver, result);
    return report;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal)
    report.gpus.push_back(describe_gpu(*driver, ordinal, count));
  return report;
}

}  // namespace shoal::memory::cuda
