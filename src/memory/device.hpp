// SPDX-License-Identifier: Apache-2.0
// device.hpp: the GPU of a PE, for code that knows no CUDA header.
//
// Everything here compiles and links without CUDA; open_device then throws Error{unsupported}. What
// needs CUDA lives in memory/cuda/.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "memory/process_id.hpp"

struct CUctx_st;     // CUcontext
struct CUstream_st;  // CUstream, cudaStream_t

namespace shoal::memory {

/// What a PE tells all others about its GPU before there is a heap; travels as bytes.
struct DeviceDescription {
  ProcessId process;
  std::uint64_t network_namespace = 0;
  std::array<std::byte, 16>
      uuid{};                 ///< of the GPU: ordinals differ where processes see different GPUs
  std::int32_t ordinal = 0;   ///< in its own process
  std::uint32_t has_vmm = 0;  ///< virtual-memory management
  std::uint32_t has_fd = 0;   ///< memory can be passed as file descriptors
  std::uint32_t has_fabric =
      0;  ///< memory can be passed as fabric handles, across hosts of an NVLink domain
  std::uint64_t granularity = 0;  ///< of mappings, in bytes
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
  CUstream_st* stream =
      nullptr;  ///< for operations that the host issues; does not synchronise with the null stream
  std::size_t granularity = 0;  ///< of mappings of this GPU's memory, in bytes
  int multiprocessors = 0;
  int compute_capability = 0;  ///< 90 for 9.0

  /// Makes the context current on the calling thread; cheap when it already is. Throws
  /// Error{system}.
  virtual void activate() const = 0;

  /// Returns when everything on a stream is complete. Polls, so that it ends by SHOAL_TIMEOUT_MS
  /// whatever runs on the GPU: Error{timeout} naming `what`. Other errors: Error{system} with the
  /// name and text of CUDA's. To be used by one thread at a time: while another one keeps adding to
  /// the stream, it never gets complete.
  virtual void synchronize(CUstream_st* on, const char* what) const = 0;
  void synchronize(const char* what) const { synchronize(stream, what); }

  /// Starts setting `bytes` bytes of GPU memory to zero, on `stream`.
  virtual void zero(void* target, std::size_t bytes) const = 0;

  virtual const DeviceDescription& description() const noexcept = 0;

 protected:
  Device() = default;
};

struct DeviceRequest {
  std::int64_t ordinal = -1;  ///< SHOAL_DEVICE
  std::int64_t index = 0;     ///< of this PE on its host: chooses the GPU where ordinal is -1
  bool probe_fabric =
      false;  ///< whether to find out if fabric handles work, which takes an allocation
  std::chrono::milliseconds timeout{30'000};
};

/// Throws Error{unsupported} where this build has no CUDA, or this machine no driver or no GPU,
/// saying why; Error{invalid_argument} for an ordinal that does not exist.
std::shared_ptr<Device> open_device(const DeviceRequest& request);

/// One GPU as shoal-info shows it.
struct GpuInfo {
  std::string name;
  std::string pci;
  std::uint64_t memory = 0;  ///< bytes
  int multiprocessors = 0;
  int compute_capability = 0;
  bool has_vmm = false, has_fd = false, has_fabric = false;
  bool multicast = false;          ///< NVLink multicast; Shoal does not use it
  bool stream_memory_ops = false;  ///< 64-bit, at any alignment of 8
  std::vector<std::string>
      peers;  ///< by ordinal: "self", "yes", "yes, no atomics", or why there is no peer access
};

struct GpuReport {
  std::vector<GpuInfo> gpus;
  std::string unavailable;  ///< why there are none
  int driver_version = 0;   ///< 13000 for CUDA 13.0
};

/// The GPUs that this process sees. Never throws for their absence.
GpuReport describe_gpus();

}  // namespace shoal::memory
