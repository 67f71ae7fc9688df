// SPDX-License-Identifier: Apache-2.0
// memory.hpp: the memory of this PE that other PEs can reach.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "memory/allocator.hpp"
#include "memory/device_heap.hpp"
#include "memory/host/segment.hpp"
#include "memory/registered_buffers.hpp"
#include "pe/control.hpp"
#include "pe/heap_arrays.hpp"
#include "pe/placement.hpp"
#include "pe/shared_ranges.hpp"
#include "record/map.hpp"
#include "shoal/settings.hpp"

namespace shoal::detail {

/// A segment of host memory, and the heap in GPU memory where SHOAL_HEAP is cuda.
///
/// | SHOAL_HEAP | segment                                                   |
/// |------------|-----------------------------------------------------------|
/// | host       | control block, symmetric heap                             |
/// | cuda       | control block, staging, memory of the "staged" transport  |
class Memory {
 public:
  // Startup, in this order. All PEs call; each call throws on its own.
  void plan(const Placement& placement, const Settings& settings);
  /// Only where the heap is in GPU memory: opens this PE's GPU and returns its description, which
  /// all PEs need for set_devices.
  memory::DeviceDescription open_device(const Placement& placement, const Settings& settings);
  void set_devices(std::vector<memory::DeviceDescription> devices) {
    devices_ = std::move(devices);
  }
  /// Creates segment and heap. Returns what the other PEs need to map the heap; empty on the host.
  std::vector<std::byte> create_heap(const Placement& placement, const Settings& settings);
  /// Maps the heaps of the other PEs; `created` holds their create_heap results, by PE.
  void connect_heap(std::span<const std::vector<std::byte>> created,
                    const memory::FdExchange& exchange);
  /// Releases everything.
  void release() noexcept;

  const ControlLayout& layout() const noexcept { return layout_; }
  /// Offset of a byte of a heap on the host in the segment.
  std::size_t host_offset(std::size_t heap_offset) const noexcept {
    return layout_.bytes() + heap_offset;
  }
  std::byte* control(std::size_t offset) const noexcept { return segment_->base() + offset; }
  /// A word of this PE's control block that other PEs write.
  std::uint64_t load(std::size_t offset) const noexcept {
    return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(control(offset)))
        .load(std::memory_order_acquire);
  }

  bool heap_on_gpu() const noexcept { return device_heap_ != nullptr; }
  std::byte* heap_base() const noexcept {
    return device_heap_ ? device_heap_->base(my_pe_) : segment_->base() + layout_.bytes();
  }
  std::size_t heap_size() const noexcept {
    return device_heap_ ? device_heap_->size() : segment_->size() - layout_.bytes();
  }
  /// Bytes from the start of every PE's heap that are backed by memory.
  std::size_t heap_mapped() const noexcept {
    return device_heap_ ? device_heap_->mapped() : heap_size();
  }
  memory::Allocator& heap() noexcept { return heap_; }
  HeapArrays& heap_arrays() noexcept { return heap_arrays_; }
  /// Offsets count from the end of the control block. Empty where the heap is on the host.
  memory::Allocator& staging() noexcept { return staging_; }
  /// Offset of the memory of the "staged" transport in every PE's segment.
  std::size_t transport_staging() const noexcept { return transport_staging_; }

  const std::shared_ptr<memory::Segment>& segment() const noexcept { return segment_; }
  /// The GPU of this PE; nullptr where the heap is on the host.
  const std::shared_ptr<memory::Device>& device() const noexcept { return device_; }
  /// The same GPU, without ownership.
  const memory::Device* cuda() const noexcept { return device_.get(); }
  /// The GPUs of all PEs, by PE; empty where the heap is on the host.
  const std::vector<memory::DeviceDescription>& devices() const noexcept { return devices_; }
  const memory::DeviceDescription& device_of(Pe pe) const noexcept {
    return devices_[static_cast<std::size_t>(pe)];
  }
  const std::shared_ptr<memory::DeviceHeap>& device_heap() const noexcept { return device_heap_; }

  memory::RegisteredBuffers& registered_buffers() noexcept { return registered_buffers_; }
  /// The buffers that this PE shares and maps. The first call creates the table.
  SharedBufferTable& shared_buffers();
  SharedRanges& shared_ranges() noexcept { return shared_ranges_; }
  /// Map of the heap's allocations that other programs of this host see.
  record::MapRecorder& map() noexcept { return map_; }

 private:
  Pe my_pe_ = 0;
  ControlLayout layout_{0, 0};
  std::shared_ptr<memory::Segment> segment_;
  std::shared_ptr<memory::Device> device_;
  std::vector<memory::DeviceDescription> devices_;
  std::shared_ptr<memory::DeviceHeap> device_heap_;
  std::unique_ptr<SharedBufferTable> shared_buffers_;
  SharedRanges shared_ranges_;
  memory::Allocator heap_{0};
  HeapArrays heap_arrays_;
  memory::Allocator staging_{0};
  std::size_t transport_staging_ = 0;
  memory::RegisteredBuffers registered_buffers_;
  record::MapRecorder map_;
};

}  // namespace shoal::detail
