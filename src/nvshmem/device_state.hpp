// SPDX-License-Identifier: Apache-2.0
// device_state.hpp: what kernels of the program know of the world: teams in GPU memory, and the
// device state in the constant memory of each translation unit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "shoal/nvshmem/device/state_type.hpp"
#include "shoal/team.hpp"
#include "shoal/world.hpp"

struct CUmod_st;
struct CUlib_st;

namespace shoal::nvshmem {

class Program;

/// The teams by number, in GPU memory.
class DeviceTeams {
 public:
  /// Room for `slots` teams, none used. Throws Error{exhausted} where the GPU has no memory.
  DeviceTeams(const World& world, std::size_t slots);
  ~DeviceTeams();
  DeviceTeams(const DeviceTeams&) = delete;
  DeviceTeams& operator=(const DeviceTeams&) = delete;

  void set(std::int32_t id, const Team& team);
  void clear(std::int32_t id);

  /// For kernels of this PE.
  DeviceState state() const;
  /// Writes the state to GPU memory at `address`. Returns when it is there.
  void write(void* address, const DeviceState& state) const;

 private:
  void copy(std::byte* target, const void* source, std::size_t bytes) const;

  World world_;
  std::size_t slots_;
  std::byte* memory_ = nullptr;  ///< DeviceTeam[slots], then Pe[slots][n_pes]
};

/// The translation units of the process that have a device state. They are added before main and
/// when a library is loaded.
class Units {
 public:
  using Find = void* (*)();

  /// Lives as long as the process: units outlive other static objects.
  static Units& of_process();

  void add(Find find);
  void remove(Find find);
  /// Fills all units, and from now on those that are added.
  void start(const Program& program);
  /// Empties all units.
  void stop();

 private:
  static void write(const Program& program, Find find, const DeviceState& state);

  std::mutex mutex_;
  std::vector<Find> finds_;
  const Program* program_ = nullptr;  ///< nullptr: not started, or the heap is on the host
};

/// Fills the device state of an image that the driver API loaded. Return a status of nvshmemx.h:
/// NVSHMEMX_ERROR_INVALID_VALUE where the image has no device state of this version, and
/// NVSHMEMX_ERROR_NOT_SUPPORTED where the heap is on the host or the driver has no such function.
int fill_module(const Program& program, CUmod_st* module);
int fill_library(const Program& program, CUlib_st* library);

}  // namespace shoal::nvshmem
