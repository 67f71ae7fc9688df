// SPDX-License-Identifier: Apache-2.0
// team_state.hpp: the state behind a Team handle.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "pe/progress.hpp"
#include "pe/wait_order.hpp"
#include "shoal/detail/access.hpp"
#include "shoal/error.hpp"
#include "shoal/heap.hpp"

namespace shoal {
using detail::state_of;  // by its short name in Shoal's own sources
}

namespace shoal::detail {

class WorldState;

/// Bits of the number of an operation below the generation of its team: 10^12 operations of a team,
/// 1.6 * 10^7 teams of a PE.
inline constexpr int kEpochBits = 40;

/// Algorithm by which the PEs of a team learn that all have arrived (meeting_of).
enum class Meeting : std::uint8_t {
  at_all,     ///< each writes to all others
  at_first,   ///< each writes to the first one, and the last to come to all
  in_rounds,  ///< each writes to one other in each of ceil(log2 n) rounds
};

/// The PEs of a team, and the number of its last operation. The team owns signals with its index in
/// the control block of each of its PEs.
struct TeamState {
  /// Not an owner: the world owns its teams, and their handles keep the world alive.
  std::shared_ptr<WorldState> world;
  std::int32_t index = 0;
  Pe my_pe = 0;         ///< index of this PE in the team
  std::vector<Pe> pes;  ///< by index in the team: the number in the world
  bool predefined = false;
  Meeting meeting = Meeting::at_all;
  bool destroyed = false;
  /// Set when the last handle of this PE is gone, on any thread.
  std::atomic<bool> dropped = false;
  bool drop_named = false;     ///< this PE has told the others so (DroppedTeams)
  std::size_t drop_names = 0;  ///< PEs of the team that have
  /// Number of the last collective operation of this team on this PE; only grows.
  std::uint64_t epoch = 0;
  /// Number of the team among all teams that its PEs ever made. Signals of an earlier team with the
  /// same index are older than any signal of this one.
  std::uint64_t generation = 1;
  /// Why an operation of this team failed on this PE. The PEs may then disagree about the number of
  /// the next operation, so later operations throw this.
  std::optional<Error> broken;
  WaitOrder wait_order;
  /// True if loads and stores reach all heaps from all PEs; found at the first use.
  std::optional<bool> one_domain;
  std::shared_ptr<void> engine;  ///< of shoal::collective::nccl, made with its first use
  bool no_engine = false;        ///< the PEs have agreed that NCCL cannot be used

  std::size_t size() const noexcept { return pes.size(); }
  std::size_t me() const noexcept { return static_cast<std::size_t>(my_pe); }
  /// Operation `number` of this team, for ProgressBoard::refusal.
  CallId call(std::uint64_t number) const noexcept {
    return {CallKind::team, static_cast<std::uint64_t>(index), generation << kEpochBits | number};
  }
  /// Its name in DroppedTeams, unique among the teams that a PE ever has.
  std::uint64_t name() const noexcept {
    return generation << 32 | static_cast<std::uint64_t>(index);
  }
  CallId next_call() const noexcept { return call(epoch + 1); }
};

}  // namespace shoal::detail
