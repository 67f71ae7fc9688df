// SPDX-License-Identifier: Apache-2.0
#include "world/teams/team.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "base/check.hpp"
#include "world/parts.hpp"
#include "world/startup/agreement.hpp"

namespace shoal {
namespace detail {

std::shared_ptr<TeamState> new_team(WorldState& state, std::int32_t index, std::uint64_t generation,
                                    std::vector<Pe> members) {
  auto team = std::make_shared<TeamState>();
  team->world = state.shared_from_this();
  team->index = index;
  team->generation = generation;
  team->members = std::move(members);
  team->my_pe = static_cast<Pe>(
      std::find(team->members.begin(), team->members.end(), state.my_pe()) - team->members.begin());
  state.parts().slots.take(index);
  state.parts().slots.next_generation = generation + 1;
  return team;
}

namespace {

using Groups = std::vector<std::vector<Pe>>;  // of members of the parent, disjoint

enum class SplitKind : std::uint32_t { strided = 1, rows, columns };

/// What every member of the parent passes alike, and what it contributes.
struct SplitRequest {
  static constexpr std::size_t kWords = 32;
  SplitKind kind;
  std::array<Pe, 3> arguments;
  std::uint64_t generation;
  std::array<std::uint64_t, kWords> free;  // a part of the set of free indices
};
static_assert(sizeof(SplitRequest) <= WorldState::kExchangeBytes);

std::string describe(const SplitRequest& request) {
  const auto& a = request.arguments;
  if (request.kind == SplitKind::strided)
    return fmt::format("split_strided(start {}, stride {}, count {})", a[0], a[1], a[2]);
  return fmt::format("split_2d(x_range {})", a[0]);
}

std::vector<SplitRequest> exchange_requests(TeamState& parent, const SplitRequest& mine) {
  const auto blobs = parent.world->exchange(parent, &mine, sizeof mine, "team split");
  std::vector<SplitRequest> all(parent.members.size());
  std::memcpy(all.data(), blobs.data(), blobs.size());
  return all;
}

void check_agreement(const TeamState& parent, const std::vector<SplitRequest>& all) {
  std::vector<std::string> texts;
  for (const SplitRequest& request : all) texts.push_back(describe(request));
  const bool equal = std::all_of(texts.begin(), texts.end(),
                                 [&](const auto& text) { return text == texts.front(); });
  require(equal, Code::mismatch, "members of team {} split it differently: {}", parent.index,
          group_by_text(texts, parent.members));
}

/// The lowest index that is free on all members of a group, among those of this part.
std::optional<std::int32_t> common_index(const std::vector<SplitRequest>& all,
                                         const std::vector<Pe>& group, std::size_t first_word) {
  std::array<std::uint64_t, SplitRequest::kWords> common =
      all[static_cast<std::size_t>(group.front())].free;
  for (const Pe member : group)
    for (std::size_t i = 0; i < common.size(); ++i)
      common[i] &= all[static_cast<std::size_t>(member)].free[i];
  return TeamSlots::lowest(common, first_word);
}

/// Splits `parent` into the groups that `divide` forms once all members agree on the arguments.
/// Every member learns every group's index, so that all throw when one group gets none. Returns the
/// team of this PE's group; nothing where it is in none.
std::shared_ptr<TeamState> split(TeamState& parent, SplitKind kind, std::array<Pe, 3> arguments,
                                 const std::function<Groups()>& divide) {
  WorldState& state = *parent.world;
  TeamSlots& slots = state.parts().slots;
  state.set_progress(Activity::team, parent.epoch + 1, "split");
  const auto words = slots.free_words();
  Groups groups;
  std::vector<std::optional<std::int32_t>> indices;
  std::vector<std::uint64_t> generations;
  for (std::size_t first = 0; first < words.size(); first += SplitRequest::kWords) {
    SplitRequest mine{kind, arguments, slots.next_generation, {}};
    const auto part = words.subspan(first, std::min(SplitRequest::kWords, words.size() - first));
    std::copy(part.begin(), part.end(), mine.free.begin());
    const std::vector<SplitRequest> all = exchange_requests(parent, mine);
    if (first == 0) {
      check_agreement(parent, all);
      groups = divide();
      indices.resize(groups.size());
      for (const SplitRequest& request : all) generations.push_back(request.generation);
    }
    for (std::size_t g = 0; g < groups.size(); ++g)
      if (!indices[g]) indices[g] = common_index(all, groups[g], first);
    if (std::all_of(indices.begin(), indices.end(),
                    [](const auto& index) { return index.has_value(); }))
      break;
  }
  state.set_progress(Activity::idle, parent.epoch, "team split");

  std::shared_ptr<TeamState> mine;
  for (std::size_t g = 0; g < groups.size(); ++g)
    require(
        indices[g].has_value(), Code::exhausted,
        "{}: no team index is free on all {} members of a new team; SHOAL_MAX_TEAMS is {}",
        [&] { return describe({kind, arguments, 0, {}}); }, groups[g].size(), slots.count());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (std::find(groups[g].begin(), groups[g].end(), parent.my_pe) == groups[g].end()) continue;
    std::vector<Pe> members;
    std::uint64_t generation = 0;
    for (const Pe member : groups[g]) {
      members.push_back(parent.members[static_cast<std::size_t>(member)]);
      generation = std::max(generation, generations[static_cast<std::size_t>(member)]);
    }
    mine = new_team(state, *indices[g], generation, std::move(members));
  }
  return mine;
}

void release_team(TeamState& team) {
  team.world->parts().slots.release(team.index);
  team.destroyed = true;
}

Team handle(std::shared_ptr<TeamState> state) {
  return state ? Team(std::move(state)) : Team();
}

}  // namespace

void make_predefined_teams(WorldState& state) {
  WorldParts& world = state.parts();
  const auto& placement = world.placement;
  const auto me = static_cast<std::size_t>(world.my_pe);
  std::vector<Pe> everybody;
  std::vector<Pe> same_index;
  for (Pe pe = 0; pe < world.n_pes; ++pe) everybody.push_back(pe);
  for (const auto& node : placement.nodes)
    same_index.push_back(node[static_cast<std::size_t>(placement.index_on_node[me])]);

  const std::vector<Pe> members[] = {
      everybody,
      placement.nodes[static_cast<std::size_t>(placement.node_of[me])],
      load_store_peers(world.device_heap ? world.heap_connectivity : world.connectivity,
                       world.my_pe),
      same_index,
      {world.my_pe}};
  static_assert(std::size(members) == static_cast<std::size_t>(PredefinedTeam::count));
  world.slots = TeamSlots(world.settings.max_teams);
  for (std::size_t i = 0; i < std::size(members); ++i) {
    auto team = std::make_shared<TeamState>();
    team->world = std::shared_ptr<WorldState>(std::shared_ptr<void>(),
                                              &state);  // no owner: the world owns the team
    team->index = static_cast<std::int32_t>(i);
    team->members = members[i];
    team->my_pe = static_cast<Pe>(std::find(members[i].begin(), members[i].end(), world.my_pe) -
                                  members[i].begin());
    team->predefined = true;
    world.slots.take(team->index);
    world.predefined.push_back(std::move(team));
  }
}

}  // namespace detail

using detail::TeamState;

Pe Team::my_pe() const noexcept {
  return state_ ? state_->my_pe : -1;
}
Pe Team::size() const noexcept {
  return state_ ? static_cast<Pe>(state_->members.size()) : 0;
}
std::int32_t Team::index() const noexcept {
  return state_ ? state_->index : -1;
}

TeamState& Team::state() const {
  require(state_ != nullptr, Code::invalid_argument,
          "this team is invalid: this PE is no member of it");
  require(!state_->destroyed, Code::closed, "team {} was destroyed", state_->index);
  require(state_->world->is_open(), Code::closed, "team {} belongs to a world that is closed",
          state_->index);
  return *state_;
}

bool Team::is_open() const noexcept {
  return state_ && !state_->destroyed && state_->world->is_open();
}

World Team::world() const {
  return World(state().world->shared_from_this());
}

Pe Team::world_pe(Pe pe) const {
  const TeamState& team = state();
  require(pe >= 0 && pe < size(), Code::invalid_argument, "PE {} of team {}; it has PEs 0 to {}",
          pe, team.index, size() - 1);
  return team.members[static_cast<std::size_t>(pe)];
}

std::optional<Pe> Team::translate(Pe pe, const Team& other) const {
  const Pe wanted = world_pe(pe);
  const TeamState& there = other.state();
  require(there.world.get() == state_->world.get(), Code::invalid_argument,
          "translate: teams {} and {} belong to different worlds", state_->index, there.index);
  const auto found = std::find(there.members.begin(), there.members.end(), wanted);
  if (found == there.members.end()) return std::nullopt;
  return static_cast<Pe>(found - there.members.begin());
}

Team Team::split_strided(Pe start, Pe stride, Pe count) const {
  return detail::handle(
      detail::split(state(), detail::SplitKind::strided, {start, stride, count}, [&] {
        const std::int64_t last = start + static_cast<std::int64_t>(stride) * (count - 1);
        require(
            count >= 1 && stride != 0 && start >= 0 && start < size() && last >= 0 && last < size(),
            Code::invalid_argument,
            "split_strided(start {}, stride {}, count {}) of a team of {} PEs; count must be at least 1, stride not 0, "
            "and all of start, start + stride, ... must lie in 0 to {}",
            start, stride, count, size(), size() - 1);
        std::vector<Pe> members;
        for (Pe i = 0; i < count; ++i) members.push_back(start + i * stride);
        return detail::Groups{std::move(members)};
      }));
}

std::pair<Team, Team> Team::split_2d(Pe x_range) const {
  const auto check = [&] {
    require(x_range >= 1, Code::invalid_argument, "split_2d: x_range is {}; it must be at least 1",
            x_range);
    return std::min(x_range, size());
  };
  auto row = detail::split(state(), detail::SplitKind::rows, {x_range, 0, 0}, [&] {
    const Pe width = check();
    detail::Groups rows;
    for (Pe pe = 0; pe < size(); ++pe) {
      if (pe % width == 0) rows.emplace_back();
      rows.back().push_back(pe);
    }
    return rows;
  });
  try {
    auto column = detail::split(state(), detail::SplitKind::columns, {x_range, 0, 0}, [&] {
      const Pe width = check();
      detail::Groups columns(static_cast<std::size_t>(width));
      for (Pe pe = 0; pe < size(); ++pe)
        columns[static_cast<std::size_t>(pe % width)].push_back(pe);
      return columns;
    });
    return {Team(std::move(row)), Team(std::move(column))};
  } catch (const Error&) {
    detail::release_team(*row);
    throw;
  }
}

void Team::destroy() {
  TeamState& team = state();
  require(!team.predefined, Code::invalid_argument,
          "team {} is predefined; it lives as long as its world", team.index);
  const auto keep = state_;
  // Released whatever the others do: a member that failed must not cost this PE its slot.
  struct Release {
    TeamState& team;
    ~Release() { detail::release_team(team); }
  } const release{team};
  team.world->set_progress(detail::Activity::team, team.epoch + 1, "destroy");
  team.world->sync(team, "Team::destroy");
  team.world->set_progress(detail::Activity::idle, team.epoch, "team destroy");
}

}  // namespace shoal
