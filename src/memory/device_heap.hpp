// SPDX-License-Identifier: Apache-2.0
// device_heap.hpp: the symmetric heap of a world in GPU memory, as one PE sees it, for code that
// knows no CUDA header.
//
// Memory is added step by step, collectively, at the start of the world and whenever an allocation
// needs more: every PE calls add, the blobs are exchanged, every PE calls connect, and all of them
// call commit, or, when any failed, roll_back.
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

/// How PEs of different processes give each other GPU memory.
enum class HandleKind : std::uint32_t { fd, fabric, ipc };
std::string_view name_of(HandleKind kind) noexcept;

/// The kind for a world: `setting` is SHOAL_CUDA_HANDLE. automatic: fd; fabric where PEs are on
/// several hosts and all of them can; ipc where some GPU has no virtual-memory management. A pure
/// function, so all PEs choose alike. Throws Error{unsupported} naming a PE that cannot do what the
/// setting asks for.
HandleKind choose_handle(std::string_view setting, std::span<const DeviceDescription> devices,
                         std::span<const std::int32_t> host_of);

/// SHOAL_SYMMETRIC_SIZE rounded up to what every GPU of the world can map.
std::size_t device_heap_bytes(std::size_t symmetric_size,
                              std::span<const DeviceDescription> devices) noexcept;

struct DeviceHeapContext {
  std::shared_ptr<Device> device;
  Pe my_pe = 0;
  std::vector<DeviceDescription> devices;  ///< by PE
  std::vector<std::int32_t> host_of;       ///< by PE
  HandleKind handle = HandleKind::fd;
  std::size_t bytes = 0;  ///< device_heap_bytes
  Token world{};          ///< names the world among all
};

class DeviceHeap {
 public:
  virtual ~DeviceHeap() = default;
  DeviceHeap(const DeviceHeap&) = delete;
  DeviceHeap& operator=(const DeviceHeap&) = delete;

  /// Backs at least the first `bytes` bytes of this PE's heap with memory. Returns what the others
  /// must know, at most kBlobBytes bytes. Throws Error{exhausted} or Error{system} naming
  /// SHOAL_SYMMETRIC_SIZE; then nothing was added.
  virtual std::vector<std::byte> add(std::size_t bytes) = 0;
  static constexpr std::size_t kBlobBytes = 256;
  /// Maps what the others added; `blobs` is by PE. What cannot be mapped at the start makes a PE
  /// unreachable (obstacle); later it is an Error.
  virtual void connect(std::span<const std::vector<std::byte>> blobs,
                       const FdExchange& exchange) = 0;
  virtual void commit() noexcept = 0;
  virtual void roll_back() noexcept = 0;

  /// Bytes of each PE's heap, and how many of them have memory behind them.
  std::size_t size() const noexcept { return size_; }
  std::size_t mapped() const noexcept { return mapped_; }
  /// What to ask add for when `bytes` bytes are needed.
  std::size_t step(std::size_t bytes) const noexcept;

  /// The heap of `pe` in this process's addresses; nullptr where it is not reached.
  virtual std::byte* base(Pe pe) const noexcept = 0;
  /// Why the heap of `pe` is not reached; empty where it is.
  virtual const std::string& obstacle(Pe pe) const noexcept = 0;
  /// Whether atomic operations of this PE's GPU work on the heap of `pe`.
  virtual bool atomics(Pe pe) const noexcept = 0;

  const Device& device() const noexcept { return *device_; }

 protected:
  DeviceHeap(std::shared_ptr<Device> device, std::size_t size)
      : device_(std::move(device)), size_(size) {}
  std::shared_ptr<Device> device_;
  std::size_t size_;
  std::size_t mapped_ = 0;
};

/// Throws Error{system} or Error{exhausted} when the address space cannot be reserved, naming
/// SHOAL_SYMMETRIC_SIZE.
std::unique_ptr<DeviceHeap> make_device_heap(DeviceHeapContext context);

}  // namespace shoal::memory
