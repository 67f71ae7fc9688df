// SPDX-License-Identifier: Apache-2.0
// shoal/team.hpp: ordered subsets of the PEs of a world.
//
// A Team is what collectives and expert-parallel groups run on. It is a cheap handle; the slot
// behind it (signals, scratch) returns to the world when destroy is called. Creating and destroying
// a team is collective over its parent or over its members: in the same order on all of them
// (OpenSHMEM 1.5, section 9.4; requirement D3).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <shoal/heap.hpp>

namespace shoal {

namespace detail {
struct TeamState;
}

class Team {
 public:
  Team() = default;  ///< invalid: what PEs that are not members get

  bool valid() const noexcept { return state_ != nullptr; }
  /// This PE's index in the team, and the number of members. -1 and 0 for an invalid team.
  Pe my_pe() const noexcept;
  Pe size() const noexcept;
  /// Index of the team in the world, 0 .. SHOAL_MAX_TEAMS - 1, the same on all members. -1 for an
  /// invalid team.
  std::int32_t index() const noexcept;

  /// Member `pe` as numbered in the world. Throws Error{invalid_argument} when out of range.
  Pe world_pe(Pe pe) const;
  /// Member `pe` of this team as numbered in `other`; nullopt when it is no member there.
  std::optional<Pe> translate(Pe pe, const Team& other) const;

  /// The team of `count` PEs of this one starting at `start`, `stride` apart (stride may be
  /// negative, not 0).
  ///
  /// Collective over this team. Returns an invalid team on PEs that are not members: they must call
  /// all the same. Throws Error{invalid_argument} when the range leaves this team, Error{exhausted}
  /// when SHOAL_MAX_TEAMS are in use by a member, Error{mismatch} when PEs pass different
  /// arguments. Nothing is changed by a call that throws, on any PE.
  Team split_strided(Pe start, Pe stride, Pe count) const;

  /// Rows and columns of this team laid out row by row, `x_range` wide: {my row, my column}.
  /// Collective over this team. The last row may be shorter. Throws as split_strided.
  std::pair<Team, Team> split_2d(Pe x_range) const;

  /// Returns the team's slot. Collective over the members; other copies of the handle become
  /// unusable (Error{closed}). Predefined teams cannot be destroyed: Error{invalid_argument}.
  void destroy();

  /// The state behind the handle, for Shoal's own layers. Throws Error{closed} when destroyed or
  /// its world is closed, Error{invalid_argument} when invalid.
  detail::TeamState& state() const;
  const std::shared_ptr<detail::TeamState>& shared_state() const noexcept { return state_; }
  explicit Team(std::shared_ptr<detail::TeamState> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<detail::TeamState> state_;
};

}  // namespace shoal
