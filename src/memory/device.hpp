// SPDX-License-Identifier: Apache-2.0
// device.hpp: the GPU of a PE, for code that knows no CUDA header.
//
// Everything here compiles and links without CUDA; open_device then throws Error{unsupported}.
// memory/cuda/ has the implementation.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "memory/host/segment.hpp"
#include "memory/process_id.hpp"

struct CUctx_st;     // CUcontext
struct CUstream_st;  // CUstream, cudaStream_t

namespace shoal::memory {

/// Description of a PE's GPU that it publishes before the heap exists. Sent as bytes.
struct DeviceDescription {
  ProcessId process;
  std::uint64_t network_namespace = 0;
  /// Identifies the GPU: ordinals differ where processes see different GPUs.
  std::array<std::byte, 16> uuid{};
  std::int32_t ordinal = 0;   ///< in its own process
  std::uint32_t has_vmm = 0;  ///< virtual-memory management
  std::uint32_t has_fd = 0;   ///< memory can be passed as file descriptors
  /// Memory can be passed as fabric handles, across hosts of an NVLink domain.
  std::uint32_t has_fabric = 0;
  std::uint64_t granularity = 0;  ///< of mappings, in bytes
};

/// Result of the query whether NICs may access memory of a GPU (GPUDirect RDMA).
struct NicAccess {
  std::string obstacle{};    ///< why not; empty if they may
  std::string no_dma_buf{};  ///< why memory cannot be exported as a dma-buf; empty if it can
};

/// The GPU that one PE uses, through the device's primary context, so that the CUDA runtime and
/// other libraries of the process share it.
class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int device = 0;               ///< ordinal in this process
  CUctx_st* context = nullptr;  ///< the primary context
  /// For operations that the host issues; does not synchronise with the null stream.
  CUstream_st* stream = nullptr;
  std::size_t granularity = 0;  ///< of mappings of this GPU's memory, in bytes
  int multiprocessors = 0;
  /// Compute capability that kernels may use, 90 for 9.0: that of the GPU, or of older code on it.
  int compute_capability = 0;

  /// Makes the context current on the calling thread; cheap if it already is. Throws Error{system}.
  virtual void activate() const = 0;

  /// Returns when all work on a stream is complete. Polls, so that it ends within SHOAL_TIMEOUT_MS
  /// even if a kernel hangs: Error{timeout} naming `what`. CUDA errors: Error{system} with their
  /// name and text. For one thread at a time: a stream to which another thread keeps adding work
  /// never completes.
  virtual void synchronize(CUstream_st* on, const char* what) const = 0;
  void synchronize(const char* what) const { synchronize(stream, what); }

  /// Starts setting `bytes` bytes of GPU memory to zero, on `stream`.
  virtual void zero(void* target, std::size_t bytes) const = 0;

  virtual const DeviceDescription& description() const noexcept = 0;

  virtual NicAccess nic_access() const = 0;
  /// A dma-buf of GPU memory, page-aligned at both ends, inside one allocation; the caller closes
  /// it. Throws Error{unsupported} where the driver has none, Error{system} where it fails.
  virtual FileDescriptor export_dma_buf(const std::byte* start, std::size_t bytes) const = 0;

 protected:
  Device() = default;
};

struct DeviceRequest {
  std::int64_t ordinal = -1;  ///< SHOAL_DEVICE
  std::int64_t index = 0;     ///< of this PE on its host: selects the GPU if ordinal is -1
  /// True if to find out if fabric handles work, which takes an allocation.
  bool probe_fabric = false;
  std::chrono::milliseconds timeout{30'000};
};

/// Throws Error{unsupported} with the reason if the build has no CUDA or the machine no driver or
/// GPU; Error{invalid_argument} for an ordinal that does not exist.
std::shared_ptr<Device> open_device(const DeviceRequest& request);

/// One GPU as shoal-info shows it.
struct GpuInfo {
  std::string name;
  std::string pci;
  std::uint64_t memory = 0;  ///< bytes
  int multiprocessors = 0;
  int compute_capability = 0;
  bool has_vmm = false, has_fd = false;
  bool has_fabric = false;         ///< memory has been exported as a fabric handle
  std::string fabric_refused;      ///< why it was not although the GPU has such handles
  bool multicast = false;          ///< NVLink multicast; Shoal does not use it
  bool stream_memory_ops = false;  ///< 64-bit, at any alignment of 8
  /// Indexed by ordinal: "self", "yes", "yes, no atomics", or why there is no peer access.
  std::vector<std::string> peers;
};

struct GpuReport {
  std::vector<GpuInfo> gpus;
  std::string unavailable;  ///< why there are none
  int driver_version = 0;   ///< 13000 for CUDA 13.0
};

/// The GPUs that this process sees. Does not throw if there are none.
GpuReport describe_gpus();

}  // namespace shoal::memory
