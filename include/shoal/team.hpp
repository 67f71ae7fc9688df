// SPDX-License-Identifier: Apache-2.0
// shoal/team.hpp: ordered subsets of the PEs of a world (OpenSHMEM 1.5, section 9.4).
//
// Collectives and expert-parallel groups run on a Team. Creating a team is collective over its
// parent: all PEs call, in the same order.
//
//   shoal::Team even = world.team().split_strided(0, 2, (world.n_pes() + 1) / 2);
//   if (even.valid()) shoal::barrier(even);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <shoal/heap.hpp>

namespace shoal {

class World;

namespace detail {
struct TeamState;
}

/// A handle of a team. Copies name the same team, because groups and collectives on streams keep
/// the team that they run on.
///
/// A team occupies one of SHOAL_MAX_TEAMS slots (signals, scratch). Destructors do not communicate
/// and may run on any thread: when the last handle is gone on each of its PEs, the slot is released
/// by the next split of the parent, or of another team with all of these PEs. Work on streams that
/// uses the team must be complete by then. free() releases it at once.
class Team {
 public:
  /// An invalid team, which is also what PEs outside a new team get.
  Team() = default;

  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  /// Whether calls are possible: valid, not destroyed, and its world is open.
  [[nodiscard]] bool is_open() const noexcept;
  /// This PE's index in the team, and the number of PEs. -1 and 0 for an invalid team.
  [[nodiscard]] Pe my_pe() const noexcept;
  [[nodiscard]] Pe size() const noexcept;
  /// Index of the team in the world, 0 to SHOAL_MAX_TEAMS - 1, the same on all its PEs. -1 for an
  /// invalid team.
  [[nodiscard]] std::int32_t index() const noexcept;

  /// The world of the team. Throws Error{closed} when the team is destroyed or its world is closed,
  /// Error{invalid_argument} when the team is invalid.
  [[nodiscard]] World world() const;

  /// PE `pe` of this team as numbered in the world. Throws Error{invalid_argument} when out of
  /// range.
  [[nodiscard]] Pe world_pe(Pe pe) const;
  /// PE `pe` of this team as numbered in `other`; nullopt when it is not in that team.
  [[nodiscard]] std::optional<Pe> translate(Pe pe, const Team& other) const;

  /// The team of `count` PEs of this one: start, start + stride, ... (stride may be negative, not
  /// 0). PEs may pass different numbers, so one call makes any number of disjoint teams:
  ///
  ///   const shoal::Pe rail = world.my_pe() % 8;
  ///   shoal::Team peers = world.team().split_strided(rail, 8, (world.n_pes() - rail + 7) / 8);
  ///
  /// Collective over this team. A PE in the set that it passes becomes a member: all PEs of this
  /// set must pass the same numbers. Every other PE gets an invalid team, whatever its numbers.
  /// Throws on all PEs: Error{mismatch} when PEs of a set pass different numbers, as those of sets
  /// that overlap do; Error{invalid_argument} when the set of a member, or the numbers that all PEs
  /// pass, leave this team; Error{exhausted} when one of the PEs uses SHOAL_MAX_TEAMS. A call that
  /// throws changes nothing on any PE.
  [[nodiscard]] Team split_strided(Pe start, Pe stride, Pe count) const;

  /// Lays this team out row by row, `x_range` PEs wide, and returns {my row, my column}. The last
  /// row may be shorter. Collective over this team. Throws as split_strided.
  [[nodiscard]] std::pair<Team, Team> split_2d(Pe x_range) const;

  /// Releases the team's slot at once. Collective over its PEs. Calls on all copies of the handle
  /// throw Error{closed} afterwards. Throws Error{invalid_argument} for predefined teams.
  void free();
  [[deprecated("use free")]] void destroy() { free(); }

 private:
  friend struct detail::Access;
  explicit Team(std::shared_ptr<detail::TeamState> state) : state_(std::move(state)) {}
  /// The state of an open team. Throws Error{closed} when the team is destroyed or its world is
  /// closed, Error{invalid_argument} when the team is invalid.
  detail::TeamState& state() const;

  std::shared_ptr<detail::TeamState> state_;
};

}  // namespace shoal
