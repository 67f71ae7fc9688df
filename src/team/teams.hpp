// SPDX-License-Identifier: Apache-2.0
// teams.hpp: the teams of a world, as one PE sees them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "pe/placement.hpp"
#include "shoal/team.hpp"
#include "team/slots.hpp"
#include "team/team_state.hpp"

namespace shoal::detail {

/// Indices of the predefined teams, the same in every world.
enum class PredefinedTeam : std::int32_t { world, node, shared, same_index, self, count };

/// Algorithm by which the PEs of a team, one of which is this one, meet. The same on all of them.
/// `domains`: Fabric::host_domains.
///
/// Writing to all takes one hop and n * n writes. PEs that share memory and cores meet at the first
/// one: 2 * n writes, and each PE blocks once. In rounds, each would block in every round.
Meeting meeting_of(const Placement& placement, std::span<const std::int32_t> domains,
                   std::span<const Pe> pes);

/// Names of teams whose last handle on one PE is gone: what the PE passes in one exchange. A PE
/// names a team once; it is released when all its PEs have named it.
struct DroppedTeams {
  static constexpr std::size_t kMost = 16;
  std::uint64_t count = 0;
  std::uint64_t more = 0;  ///< 1: this PE has further names for another exchange
  std::array<std::uint64_t, kMost> names{};
};

class Teams {
 public:
  /// Creates the predefined teams. `shared` lists the PEs whose heaps this PE reaches by loads and
  /// stores. Called once, while the world opens.
  void create_predefined(WorldState& world, const Placement& placement, std::vector<Pe> shared,
                         std::int64_t max_teams);

  TeamState& world_team() const noexcept { return *predefined_.front(); }
  /// Does not own the world (TeamState::world).
  TeamState& predefined(PredefinedTeam which) const noexcept {
    return *predefined_[static_cast<std::size_t>(which)];
  }
  /// A team of `pes`, which include this PE, at an index and generation that all of them agreed on.
  /// Takes the index. The result and its copies are the handles of this PE; they keep the world.
  std::shared_ptr<TeamState> create(WorldState& world, std::int32_t index, std::uint64_t generation,
                                    std::vector<Pe> pes);
  void release(TeamState& team) noexcept;

  /// Teams of PEs of `parent` that this PE has dropped and not yet named.
  DroppedTeams unnamed(const TeamState& parent) const;
  /// Takes what PE `pe` of the world has named, and releases the teams that all their PEs have.
  void take(Pe pe, const DroppedTeams& dropped);

  TeamSlots& slots() noexcept { return slots_; }

  /// Joins that this PE has published (World::make_team).
  std::uint64_t joins = 0;
  /// Indexed by PE: version of the last of its join records that this PE has used.
  std::vector<std::uint64_t> joins_read;

 private:
  std::vector<std::shared_ptr<TeamState>> predefined_;
  std::vector<std::shared_ptr<TeamState>> made_;  // those not released
  TeamSlots slots_{0};
};

/// Joins the team that is being made under `id`: World::make_team.
Team join_team(WorldState& state, std::uint64_t id, Pe size, Pe index);

}  // namespace shoal::detail
