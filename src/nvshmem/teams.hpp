// SPDX-License-Identifier: Apache-2.0
// teams.hpp: the teams of the program by their number, which is nvshmem_team_t.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "shoal/team.hpp"
#include "shoal/world.hpp"

namespace shoal::nvshmem {

class DeviceTeams;

class Teams {
 public:
  using Id = std::int32_t;

  /// The number of teams of a world: SHOAL_MAX_TEAMS and the predefined ones.
  static std::size_t capacity(const World& world);

  /// Creates the predefined teams. Collective over all PEs. `device`: keeps a copy of each team for
  /// kernels; nullptr: none.
  Teams(const World& world, DeviceTeams* device);

  /// A copy of the handle. Throws Error{invalid_argument} for a number without a team.
  Team at(Id id) const;
  /// True if the number has a team.
  bool has(Id id) const;
  int contexts(Id id) const;
  /// NVSHMEM_TEAM_INVALID for an invalid team. Throws Error{exhausted}.
  Id add(Team team, int contexts);
  /// Destroys the team. Collective over it.
  void destroy(Id id);

 private:
  struct Slot {
    Team team;
    int contexts = 0;
  };
  void put(Id id, Team team, int contexts);
  void make_gpu_teams(const World& world);

  DeviceTeams* device_;
  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
};

}  // namespace shoal::nvshmem
