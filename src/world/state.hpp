// SPDX-License-Identifier: Apache-2.0
// state.hpp: the owner of the parts of a world, behind a World handle.
//
// Code takes the part that it needs, and includes the header of that part:
//
//   Placement      pe/placement.hpp           the PEs, their nodes and hosts
//   Memory         pe/memory.hpp              control block, heap, staging, shared buffers
//   Waits          pe/waits.hpp               waiting for what other PEs write
//   Health         pe/health.hpp              failed PEs and first causes
//   ProgressBoard  pe/progress.hpp            the operation of each PE, refused calls
//   PeRecorder     record/pe_recorder.hpp     what other programs of this host see of this PE
//   Fabric         fabric/fabric.hpp          transports and the choice per PE
//   Teams          team/teams.hpp             predefined teams, free team indices
//   DeviceSide     device/device_side.hpp     operations on streams and in kernels
//
// Parts of a higher room are only named here: startup/state.cpp creates and releases them.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "pe/closers.hpp"
#include "pe/health.hpp"
#include "pe/placement.hpp"
#include "pe/progress.hpp"
#include "pe/waits.hpp"
#include "record/pe_recorder.hpp"
#include "shoal/detail/access.hpp"
#include "shoal/world.hpp"

namespace shoal {
using detail::state_of;  // by its short name in Shoal's own sources
}

namespace shoal::detail {

class DeviceSide;
class Fabric;
class Memory;
class Teams;

class WorldState : public std::enable_shared_from_this<WorldState> {
 public:
  WorldState();
  /// Announces to the other PEs that this one left where the world is still open.
  ~WorldState();
  WorldState(const WorldState&) = delete;
  WorldState& operator=(const WorldState&) = delete;

  bool is_open() const noexcept { return open_; }
  const Settings& settings() const noexcept { return settings_; }
  Pe my_pe() const noexcept { return placement_.my_pe; }
  Pe n_pes() const noexcept { return placement_.n_pes; }

  const Placement& placement() const noexcept { return placement_; }
  Memory& memory() const noexcept { return *memory_; }
  Waits& waits() noexcept { return waits_; }
  /// Reports no failure and publishes nothing once the world is closed, as progress().
  Health& health() noexcept { return health_; }
  const ProgressBoard& progress() const noexcept { return progress_; }
  record::PeRecorder& recorder() noexcept { return recorder_; }
  Fabric& fabric() const noexcept { return *fabric_; }
  Teams& teams() const noexcept { return *teams_; }
  SymmetricHeap& heap() noexcept { return heap_; }
  /// nullptr where the heap is on the host.
  DeviceSide* device_side() const noexcept { return device_side_.get(); }
  /// Returns the one before.
  std::shared_ptr<DeviceSide> set_device_side(std::shared_ptr<DeviceSide> side) noexcept;
  /// Objects to close before this world releases its memory.
  Closers& closers() noexcept { return closers_; }
  Bootstrap& bootstrap() const noexcept { return *bootstrap_; }
  const std::vector<InitPhase>& init_phases() const noexcept { return phases_; }

  /// Ends this PE's part of the world after a barrier. Closes the registered objects first.
  /// Everything is released before this returns or throws, even when the barrier fails.
  void close();
  /// Makes close() warn in place of throwing where other PEs do not come to its barrier: they may
  /// run on without this PE.
  void let_leave_early() noexcept { may_leave_early_ = true; }

 private:
  friend class Opening;  // startup/open.cpp

  void release() noexcept;

  Settings settings_;
  std::shared_ptr<Bootstrap> bootstrap_;
  std::vector<InitPhase> phases_;
  std::atomic<bool> open_ = false;
  std::atomic<bool> may_leave_early_ = false;

  // In the order of creation; each part refers only to earlier ones.
  Placement placement_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<Teams> teams_;
  record::PeRecorder recorder_;
  ProgressBoard progress_;
  Health health_;
  Waits waits_;
  std::shared_ptr<DeviceSide> device_side_;
  SymmetricHeap heap_;
  Closers closers_;
};

}  // namespace shoal::detail
