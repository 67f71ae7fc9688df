// SPDX-License-Identifier: Apache-2.0
// parts.hpp: what a world is made of, for the files of this folder.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory/allocator.hpp"
#include "memory/device_heap.hpp"
#include "memory/host/segment.hpp"
#include "memory/registered_buffers.hpp"
#include "shoal/world.hpp"
#include "topology/identity.hpp"
#include "transport/transport.hpp"
#include "world/control.hpp"
#include "world/fabric/connectivity.hpp"
#include "world/health/health.hpp"
#include "world/memory/shared_buffers.hpp"
#include "world/state.hpp"
#include "world/teams/slots.hpp"

namespace shoal::detail {

/// Indices of the predefined teams, the same in every world.
enum class PredefinedTeam : std::int32_t { world, node, shared, same_index, self, count };

/// Where operations on the heap of a PE go.
struct HeapRoute {
  transport::Transport& transport;
  std::size_t start;  ///< of the heap, in that transport's offsets
};

class DeviceSide;  // world/device_side.hpp

struct WorldParts {
  Settings settings;
  std::shared_ptr<Bootstrap> bootstrap;
  Pe my_pe = 0;
  Pe n_pes = 0;
  topology::Placement placement;
  memory::Token token{};  ///< names the world; a secret of its PEs
  std::vector<InitPhase> phases;
  bool open = false;
  bool announced = false;  ///< this PE has told the others that it closed, failed or left

  // The segment holds the control block, then the heap, unless that lies in GPU memory.
  ControlLayout layout{0, 0};
  std::shared_ptr<memory::Segment> segment;
  std::shared_ptr<memory::Device> device;  ///< of this PE; nullptr where the heap is on the host
  std::vector<memory::DeviceDescription> devices;
  std::shared_ptr<memory::DeviceHeap> device_heap;
  std::shared_ptr<SharedBufferTable> shared_buffers;  ///< made at its first use
  SharedRanges shared_ranges;                         ///< what is in it, for any thread
  memory::Allocator allocator{0};
  memory::Allocator staging{
      0};  ///< of the host memory behind the control block where the heap is in GPU memory
  std::size_t heap_staging = 0;  ///< where the memory of transport staged starts in the segment
  memory::RegisteredBuffers registered;

  std::optional<std::vector<std::string>>
      nics;  ///< of this PE by the NIC plan; only where a network is used
  std::vector<std::unique_ptr<transport::Transport>> transports;
  std::vector<std::shared_ptr<const void>>
      kept;  ///< what a network may still write to; goes after `transports`
  Connectivity connectivity;
  std::vector<std::unique_ptr<transport::Transport>> heap_transports;  ///< for a heap in GPU memory
  Connectivity heap_connectivity;                                      ///< the same for them
  std::vector<std::byte*> peer_base;  ///< start of each PE's heap where loads and stores reach it
  std::shared_ptr<DeviceSide>
      device_side;  ///< for kernels and streams; nullptr where the heap is on the host

  std::vector<std::shared_ptr<TeamState>> predefined;
  TeamSlots slots{0};
  std::uint64_t joins = 0;  ///< joins that this PE has published
  std::vector<std::uint64_t>
      joins_read;  ///< by PE: version of the last of its join records that this PE has used

  std::optional<Health> health;
  std::mutex health_mutex;   ///< a group's stream may wait while the PE's own thread does
  std::size_t rotation = 0;  ///< where the next wait for any of several variables starts

  /// The transport that carries operations to the control block of `pe`.
  transport::Transport& route(Pe pe) const noexcept {
    return *transports[connectivity.transport_of[static_cast<std::size_t>(pe)]];
  }
  /// How to operate on the heap of `pe`, with the GPU's context current where the heap is there.
  /// Throws Error{unsupported} where no transport does what `needed` names.
  HeapRoute heap_route(Pe pe, transport::Capabilities needed) const;
  std::byte* control(std::size_t offset) const noexcept { return segment->base() + offset; }
  /// A word of this PE's control block that others write.
  std::uint64_t load(std::size_t offset) const noexcept {
    return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(control(offset)))
        .load(std::memory_order_acquire);
  }
  TeamState& world_team() const noexcept { return *predefined.front(); }
  std::byte* heap_base() const noexcept {
    return device_heap ? device_heap->base(my_pe) : segment->base() + layout.bytes();
  }
  std::size_t heap_size() const noexcept {
    return device_heap ? device_heap->size() : segment->size() - layout.bytes();
  }
  /// Bytes from the start of every PE's heap that have memory behind them.
  std::size_t heap_mapped() const noexcept {
    return device_heap ? device_heap->mapped() : heap_size();
  }
};

}  // namespace shoal::detail
