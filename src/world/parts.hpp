// parts.hpp: what a world is made of, for the files of this folder.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory/allocator.hpp"
#include "memory/registered_buffers.hpp"
#include "memory/segment.hpp"
#include "shoal/world.hpp"
#include "topology/identity.hpp"
#include "transport/transport.hpp"
#include "world/connectivity.hpp"
#include "world/control.hpp"
#include "world/health.hpp"
#include "world/state.hpp"
#include "world/team_slots.hpp"

namespace shoal::detail {

/// Indices of the predefined teams, the same in every world.
enum class PredefinedTeam : std::int32_t { world, node, shared, same_index, self, count };

struct WorldParts {
  Settings settings;
  std::shared_ptr<Bootstrap> bootstrap;
  Pe my_pe = 0;
  Pe n_pes = 0;
  topology::Placement placement;
  std::vector<InitPhase> phases;
  bool open = false;
  bool announced = false;  ///< this PE has told the others that it closed, failed or left

  // The segment holds the control block, then the heap.
  ControlLayout layout{0, 0};
  std::shared_ptr<memory::Segment> segment;
  memory::Allocator allocator{0};
  memory::RegisteredBuffers registered;

  std::vector<std::unique_ptr<transport::Transport>> transports;
  Connectivity connectivity;
  std::vector<std::byte*> peer_base;  ///< start of each PE's heap where loads and stores reach it

  std::vector<std::shared_ptr<TeamState>> predefined;
  TeamSlots slots{0};
  std::uint64_t joins = 0;                ///< joins that this PE has published
  std::vector<std::uint64_t> joins_read;  ///< by PE: version of the last of its join records that this PE has used

  std::optional<Health> health;
  std::mutex health_mutex;   ///< a group's stream may wait while the PE's own thread does
  std::size_t rotation = 0;  ///< where the next wait for any of several variables starts

  /// The transport that carries operations to `pe`.
  transport::Transport& route(Pe pe) const noexcept {
    return *transports[connectivity.transport_of[static_cast<std::size_t>(pe)]];
  }
  std::byte* control(std::size_t offset) const noexcept { return segment->base() + offset; }
  /// A word of this PE's control block that others write.
  std::uint64_t load(std::size_t offset) const noexcept {
    return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(control(offset))).load(std::memory_order_acquire);
  }
  TeamState& world_team() const noexcept { return *predefined.front(); }
  std::size_t heap_size() const noexcept { return segment->size() - layout.bytes(); }
};

}  // namespace shoal::detail
