// SPDX-License-Identifier: Apache-2.0
#include "team/teams.hpp"

#include <algorithm>
#include <iterator>

#include "fabric/fabric.hpp"
#include "world/state.hpp"

namespace shoal::detail {
namespace {

std::shared_ptr<TeamState> make_state(WorldState& world, std::int32_t index, std::vector<Pe> pes) {
  auto team = std::make_shared<TeamState>();
  team->index = index;
  const Pe me = world.placement().my_pe;
  team->my_pe = static_cast<Pe>(std::find(pes.begin(), pes.end(), me) - pes.begin());
  team->meeting = meeting_of(world.placement(), world.fabric().host_domains(), pes);
  team->pes = std::move(pes);
  team->world = std::shared_ptr<WorldState>(std::shared_ptr<void>(), &world);  // not an owner
  return team;
}

bool contains(const std::vector<Pe>& pes, Pe pe) {
  return std::find(pes.begin(), pes.end(), pe) != pes.end();
}

/// The handles of a team on this PE share one of these.
struct Handle {
  std::shared_ptr<WorldState> world;
  std::shared_ptr<TeamState> team;
  Handle(std::shared_ptr<WorldState> world_in, std::shared_ptr<TeamState> team_in)
      : world(std::move(world_in)), team(std::move(team_in)) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { team->dropped.store(true, std::memory_order_release); }
};

}  // namespace

Meeting meeting_of(const Placement& placement, std::span<const std::int32_t> domains,
                   std::span<const Pe> pes) {
  constexpr std::size_t kFew = 8;  // PEs
  const auto domain = [&](Pe pe) { return domains[static_cast<std::size_t>(pe)]; };
  const auto with_the_first = [&](Pe pe) { return domain(pe) == domain(pes.front()); };
  if (pes.size() > kFew && placement.pes_on_host() > placement.cores_on_host &&
      std::all_of(pes.begin(), pes.end(), with_the_first))
    return Meeting::at_first;
  return pes.size() <= ControlLayout::kDirectPes ? Meeting::at_all : Meeting::in_rounds;
}

void Teams::create_predefined(WorldState& world, const Placement& placement, std::vector<Pe> shared,
                              std::int64_t max_teams) {
  std::vector<Pe> all;
  for (Pe pe = 0; pe < placement.n_pes; ++pe) all.push_back(pe);
  const auto index_on_node = static_cast<std::size_t>(placement.index_on_node[placement.me()]);
  std::vector<Pe> same_index;
  for (const auto& node : placement.nodes) same_index.push_back(node[index_on_node]);
  const auto node = static_cast<std::size_t>(placement.node_of[placement.me()]);

  std::vector<Pe> pes[] = {std::move(all),
                           placement.nodes[node],
                           std::move(shared),
                           std::move(same_index),
                           {placement.my_pe}};
  static_assert(std::size(pes) == static_cast<std::size_t>(PredefinedTeam::count));
  slots_ = TeamSlots(max_teams);
  joins_read.resize(static_cast<std::size_t>(placement.n_pes));
  for (std::size_t i = 0; i < std::size(pes); ++i) {
    auto team = make_state(world, static_cast<std::int32_t>(i), std::move(pes[i]));
    team->predefined = true;
    slots_.take(team->index);
    predefined_.push_back(std::move(team));
  }
}

std::shared_ptr<TeamState> Teams::create(WorldState& world, std::int32_t index,
                                         std::uint64_t generation, std::vector<Pe> pes) {
  auto team = make_state(world, index, std::move(pes));
  team->generation = generation;
  auto handle = std::make_shared<Handle>(world.shared_from_this(), team);
  TeamState* const known = made_.emplace_back(std::move(team)).get();
  slots_.take(index);
  slots_.next_generation = generation + 1;
  return {std::move(handle), known};
}

void Teams::release(TeamState& team) noexcept {
  slots_.release(team.index);
  team.destroyed = true;
  std::erase_if(made_, [&](const auto& one) { return one.get() == &team; });  // may end `team`
}

DroppedTeams Teams::unnamed(const TeamState& parent) const {
  DroppedTeams dropped;
  for (const auto& team : made_) {
    if (team->drop_named || !team->dropped.load(std::memory_order_acquire) ||
        !std::all_of(team->pes.begin(), team->pes.end(),
                     [&](Pe pe) { return contains(parent.pes, pe); }))
      continue;
    if (dropped.count == DroppedTeams::kMost) {
      dropped.more = 1;
      break;
    }
    dropped.names[dropped.count++] = team->name();
  }
  return dropped;
}

void Teams::take(Pe pe, const DroppedTeams& dropped) {
  for (std::size_t i = 0; i < dropped.count; ++i) {
    // Other teams of that PE may have the same name as one of this PE's.
    const auto found = std::find_if(made_.begin(), made_.end(), [&](const auto& team) {
      return team->name() == dropped.names[i] && contains(team->pes, pe);
    });
    if (found == made_.end()) continue;
    TeamState& team = **found;
    team.drop_named |= pe == team.pes[team.me()];
    if (++team.drop_names == team.size()) release(team);
  }
}

}  // namespace shoal::detail
