// SPDX-License-Identifier: Apache-2.0
// The GPU of a PE. Several PEs of one process may use one GPU. They share its primary context, but
// not the stream.
#include <algorithm>
#include <cstring>

#include "base/backoff.hpp"
#include "base/check.hpp"
#include "base/interrupt.hpp"
#include "memory/cuda/code.hpp"
#include "memory/cuda/driver.hpp"
#include "memory/cuda/peers.hpp"
#include "memory/cuda/stream_pool.hpp"
#include "memory/cuda/window.hpp"
#include "memory/cuda_backend.hpp"

namespace shoal::memory::cuda {
namespace {

int attribute(const Driver& driver, CUdevice device, CUdevice_attribute which) {
  int value = 0;
  return driver.device_attribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const DeviceRequest& request);

  void activate() const override {
    CUcontext current = nullptr;
    if (driver_.get_current(&current) == CUDA_SUCCESS && current == context) return;
    check(driver_, driver_.set_current(context), [&] {
      return fmt::format("SHOAL-N700: cannot make the context of GPU {} current", device);
    });
  }
  using Device::synchronize;
  void synchronize(CUstream on, const char* what) const override;
  void zero(void* target, std::size_t bytes) const override {
    check(driver_, driver_.set_bytes(address(target), 0, bytes, stream),
          fmt::format("SHOAL-N700: cannot set {} bytes of GPU {} to zero", bytes, device));
  }
  const DeviceDescription& description() const noexcept override { return description_; }
  NicAccess nic_access() const override;
  FileDescriptor export_dma_buf(const std::byte* start, std::size_t bytes) const override;

 private:
  void describe_self(const DeviceRequest& request);

  const Driver& driver_;
  CUdevice handle_ = 0;
  DeviceDescription description_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<CUstream_st> taken_stream_;  // owns `stream`
};

CudaDevice::CudaDevice(const DeviceRequest& request)
    : driver_(driver()), timeout_(request.timeout) {
  int count = 0;
  check(driver_, driver_.device_count(&count), "SHOAL-N700: cannot count the GPUs");
  require(
      count > 0, Code::unsupported,
      "SHOAL-N702: SHOAL_HEAP is cuda, but the CUDA driver reports no GPU (CUDA_VISIBLE_DEVICES "
      "may hide it); allowed: host");
  require(
      request.ordinal < count, Code::invalid_argument,
      "SHOAL-N703: SHOAL_DEVICE is {}; allowed: -1 to {}, where -1 distributes the PEs over the "
      "GPUs",
      request.ordinal, count - 1);
  device = static_cast<int>(request.ordinal >= 0 ? request.ordinal : request.index % count);
  check(driver_, driver_.device_get(&handle_, device),
        fmt::format("SHOAL-N700: cannot get the handle of GPU {}", device));
  require(
      attribute(driver_, handle_, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING) != 0, Code::unsupported,
      "SHOAL-N704: SHOAL_HEAP is cuda, but GPU {} does not support unified addressing; allowed: "
      "host",
      device);
  multiprocessors = attribute(driver_, handle_, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  compute_capability =
      10 * attribute(driver_, handle_, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
      attribute(driver_, handle_, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  context = primary_context(driver_, handle_);
  activate();
  // Kernels compiled for an older architecture lack what the GPU has.
  const int code = code_architecture();
  if (code != 0) compute_capability = std::min(compute_capability, code);
  describe_self(request);
  taken_stream_ = take_stream(*this, StreamPriority::highest);
  stream = taken_stream_.get();
}

void CudaDevice::describe_self(const DeviceRequest& request) {
  description_.process = this_process();
  description_.network_namespace = network_namespace();
  description_.ordinal = device;
  CUuuid uuid{};
  check(driver_, driver_.device_uuid(&uuid, handle_),
        fmt::format("SHOAL-N700: cannot read the UUID of GPU {}", device));
  static_assert(sizeof uuid.bytes == 16);
  std::memcpy(description_.uuid.data(), uuid.bytes, sizeof uuid.bytes);
  granularity = Segment::kAlignment;
  if (attribute(driver_, handle_, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0) {
    description_.has_vmm = 1;
    description_.has_fd =
        attribute(driver_, handle_,
                  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0;
    const CUmemAllocationProp properties = heap_properties(device, CU_MEM_HANDLE_TYPE_NONE);
    check(driver_,
          driver_.granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
          fmt::format("SHOAL-N700: cannot read the mapping granularity of GPU {}", device));
    description_.has_fabric =
        request.probe_fabric &&
        attribute(driver_, handle_, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) != 0 &&
        export_fabric(driver_, device, granularity) == CUDA_SUCCESS;
  }
  description_.granularity = granularity;
}

NicAccess CudaDevice::nic_access() const {
  const auto has = [&](CUdevice_attribute which) { return attribute(driver_, handle_, which); };
  NicAccess access;
  if (has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) == 0 ||
      (description_.has_vmm != 0 &&
       has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) == 0))
    access.obstacle = fmt::format("GPU {} has no GPUDirect RDMA", device);
  else if (has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) <
           CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER)
    access.obstacle =
        fmt::format("kernels of GPU {} may see a signal before the data that a NIC wrote", device);
  if (driver_.range_handle == nullptr)
    access.no_dma_buf = "the CUDA driver has no cuMemGetHandleForAddressRange (since CUDA 11.7)";
  else if (has(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) == 0)
    access.no_dma_buf = fmt::format(
        "GPU {} has no dma-buf, which needs NVIDIA's open kernel modules and Linux 5.12", device);
  return access;
}

FileDescriptor CudaDevice::export_dma_buf(const std::byte* start, std::size_t bytes) const {
  const NicAccess access = nic_access();
  require(access.no_dma_buf.empty(), Code::unsupported, "{}", access.no_dma_buf);
  activate();
  int fd = -1;
  check(driver_,
        driver_.range_handle(&fd, address(start), bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
        [&] { return fmt::format("GPU {} exports no dma-buf of {} bytes", device, bytes); });
  return FileDescriptor(fd);
}

void CudaDevice::synchronize(CUstream on, const char* what) const {
  const auto start = std::chrono::steady_clock::now();
  Backoff backoff;
  for (int polls = 0;; ++polls) {
    const CUresult result = driver_.stream_query(on);
    if (result == CUDA_SUCCESS) return;
    if (result != CUDA_ERROR_NOT_READY)
      check(driver_, result, fmt::format("SHOAL-N700: {} failed on GPU {}", what, device));
    if (polls < 1000) continue;
    if (polls % 16 == 0) throw_if_interrupted(what);
    require(
        std::chrono::steady_clock::now() - start < timeout_, Code::timeout,
        "SHOAL-N705: {} timed out after {} ms: GPU {} has not completed it, other work may occupy "
        "the GPU; Setting: SHOAL_TIMEOUT_MS.",
        what, timeout_.count(), device);
    backoff();
  }
}

}  // namespace

std::shared_ptr<Device> open_device(const DeviceRequest& request) {
  return std::make_shared<CudaDevice>(request);
}

}  // namespace shoal::memory::cuda
