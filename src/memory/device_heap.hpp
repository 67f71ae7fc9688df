// SPDX-License-Identifier: Apache-2.0
// device_heap.hpp: the symmetric heap of a world in GPU memory, as one PE sees it, for code that
// knows no CUDA header.
//
// Memory is added in collective steps, at startup and when an allocation needs more: every PE calls
// add, the blobs are exchanged, every PE calls connect, and all call commit, or roll_back if one
// failed.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "memory/device.hpp"
#include "memory/host/fd_exchange.hpp"
#include "shoal/heap.hpp"

namespace shoal::memory {

/// Means by which processes share GPU memory. pinned: none, the heap is in pinned host memory.
enum class HandleKind : std::uint32_t { fd, fabric, ipc, pinned };
std::string_view name_of(HandleKind kind) noexcept;

/// The kind for a world: `setting` is SHOAL_CUDA_HANDLE. automatic: fd; fabric if PEs are on
/// several hosts and all GPUs support it; ipc if a GPU has no virtual-memory management. A pure
/// function, so all PEs choose alike. Throws Error{unsupported} naming a PE that does not support
/// the requested kind.
HandleKind choose_handle(std::string_view setting, std::span<const DeviceDescription> devices,
                         std::span<const std::int32_t> host_of);

/// Bytes of which every mapping by GPUs of the world is a multiple.
std::size_t device_heap_unit(std::span<const DeviceDescription> devices) noexcept;
/// SHOAL_SYMMETRIC_SIZE rounded up to that unit.
std::size_t device_heap_bytes(std::size_t symmetric_size,
                              std::span<const DeviceDescription> devices) noexcept;

struct DeviceHeapContext {
  std::shared_ptr<Device> device;
  Pe my_pe = 0;
  std::vector<DeviceDescription> devices;  ///< by PE
  std::vector<std::int32_t> host_of;       ///< by PE
  HandleKind handle = HandleKind::fd;
  std::size_t bytes = 0;  ///< device_heap_bytes
  Token world{};          ///< unique name of the world
};

class DeviceHeap {
 public:
  virtual ~DeviceHeap() = default;
  DeviceHeap(const DeviceHeap&) = delete;
  DeviceHeap& operator=(const DeviceHeap&) = delete;

  /// Backs at least the first `bytes` bytes of this PE's heap with memory. Returns the description
  /// for the other PEs, at most kBlobBytes bytes. Throws Error{exhausted} or Error{system} naming
  /// SHOAL_SYMMETRIC_SIZE; nothing is added then.
  virtual std::vector<std::byte> add(std::size_t bytes) = 0;
  static constexpr std::size_t kBlobBytes = 256;
  /// Maps the memory that the other PEs added; `blobs` is by PE. At startup, a PE whose memory
  /// cannot be mapped is unreachable (obstacle); later this is an Error.
  virtual void connect(std::span<const std::vector<std::byte>> blobs,
                       const FdExchange& exchange) = 0;
  virtual void commit() noexcept = 0;
  virtual void roll_back() noexcept = 0;

  /// Bytes of each PE's heap, and how many of them are backed by memory.
  std::size_t size() const noexcept { return size_; }
  std::size_t mapped() const noexcept { return mapped_; }
  /// The argument of add if `bytes` bytes are needed, more than are mapped: 64 MiB are added, or
  /// what is missing where that is more, rounded up to a unit of the GPUs; no more than is left.
  std::size_t step(std::size_t bytes) const noexcept;

  /// The heap of `pe` in this process's addresses; nullptr if it is not reachable.
  virtual std::byte* base(Pe pe) const noexcept = 0;
  /// Why the heap of `pe` is not reachable; empty if it is.
  virtual const std::string& obstacle(Pe pe) const noexcept = 0;
  /// True if atomic operations of this PE's GPU work on the heap of `pe`.
  virtual bool atomics(Pe pe) const noexcept = 0;

  /// True if the heap is in host memory that the GPU reaches, instead of GPU memory.
  virtual bool on_host() const noexcept { return false; }

  const Device& device() const noexcept { return *device_; }

 protected:
  DeviceHeap(std::shared_ptr<Device> device, std::size_t size, std::size_t unit)
      : device_(std::move(device)), size_(size), unit_(unit) {}
  std::shared_ptr<Device> device_;
  std::size_t size_, unit_;
  std::size_t mapped_ = 0;
};

/// Throws Error{system} or Error{exhausted} naming SHOAL_SYMMETRIC_SIZE if the address space cannot
/// be reserved.
std::unique_ptr<DeviceHeap> make_device_heap(DeviceHeapContext context);

}  // namespace shoal::memory
