// SPDX-License-Identifier: Apache-2.0
// World as a handle: open, close, queries, teams.
#include "shoal/world.hpp"

#include <cstdint>
#include <cstring>

#include "base/check.hpp"
#include "fabric/fabric.hpp"
#include "memory/host/segment.hpp"
#include "pe/forks.hpp"
#include "pe/memory.hpp"
#include "record/files.hpp"
#include "rma/address_checks.hpp"
#include "shoal/observe.hpp"
#include "startup/connectivity_report.hpp"
#include "startup/open.hpp"
#include "team/team_state.hpp"
#include "team/teams.hpp"
#include "world/state.hpp"

namespace shoal {

using detail::PredefinedTeam;
using detail::WorldState;

namespace {

/// Shares the ownership of the world, which owns the team.
Team predefined_team(const std::shared_ptr<WorldState>& state, PredefinedTeam which) {
  if (!state || !state->is_open())
    fail(Code::closed, "SHOAL-N172: {}", detail::why_closed(state.get()));
  return detail::Access::make<Team>(
      std::shared_ptr<detail::TeamState>(state, &state->teams().predefined(which)));
}

}  // namespace

World World::open(WorldOptions options) {
  World world;
  world.state_ = detail::open_world(std::move(options));
  return world;
}

std::future<World> World::open_async(WorldOptions options) {
  return std::async(std::launch::async,
                    [options = std::move(options)]() mutable { return open(std::move(options)); });
}

void World::close() {
  if (!state_) return;
  if (detail::is_inherited(*state_))
    fail(Code::closed, "SHOAL-N172: close: {}", detail::why_closed(state_.get()));
  state_->close();
}

void World::abort(const std::string& reason) const noexcept {
  if (state_) state_->health().fail_world(reason);
}

bool World::is_open() const noexcept {
  return state_ && state_->is_open();
}

WorldState& World::state() const {
  if (!state_ || !state_->is_open())
    fail(Code::closed, "SHOAL-N172: {}", detail::why_closed(state_.get()));
  return *state_;
}

Pe World::my_pe() const {
  return state().my_pe();
}
Pe World::n_pes() const {
  return state().n_pes();
}
Pe World::my_pe_on_node() const {
  const detail::Placement& placement = state().placement();
  return placement.index_on_node[placement.me()];
}
Pe World::pes_per_node() const {
  return state().placement().pes_per_node;
}

Team World::team() const {
  return predefined_team(state_, PredefinedTeam::world);
}
Team World::node_team() const {
  return predefined_team(state_, PredefinedTeam::node);
}
Team World::shared_team() const {
  return predefined_team(state_, PredefinedTeam::shared);
}
Team World::same_index_team() const {
  return predefined_team(state_, PredefinedTeam::same_index);
}
Team World::self_team() const {
  return predefined_team(state_, PredefinedTeam::self);
}

std::uint64_t World::make_team_id() const {
  state();  // throws when closed
  const memory::Token random = memory::make_token();
  std::uint64_t id = 0;
  std::memcpy(&id, random.data(), sizeof id);
  return id;
}

Team World::make_team(std::uint64_t id, Pe size, Pe index) const {
  return detail::join_team(state(), id, size, index);
}

SymmetricHeap& World::heap() const {
  return state().heap();
}
const Settings& World::settings() const {
  return state().settings();
}
const std::vector<InitPhase>& World::init_phases() const {
  return state().init_phases();
}

Bootstrap& World::bootstrap() const {
  return state().bootstrap();
}

std::string World::describe_transport(Pe pe) const {
  const WorldState& world = state();
  detail::check_pe(world, "describe_transport", pe);
  const detail::Fabric& fabric = world.fabric();
  const auto i = static_cast<std::size_t>(pe);
  const std::string_view control = fabric.route(pe).name();
  if (!world.memory().heap_on_gpu())
    return fmt::format("{}: {}", control, transport::describe(fabric.host_map().capabilities[i]));
  const detail::Connectivity& map = fabric.gpu_map();
  if (map.capabilities[i] == 0)
    return fmt::format("none: {}; control {}",
                       detail::why_not(map, world.my_pe(), world.my_pe(), pe), control);
  const std::size_t chosen = map.transport_of[i];
  const std::string note = fabric.heap_note(pe);
  std::string text = fmt::format("{}: {}{}{}; control {}", map.names[chosen],
                                 transport::describe(map.capabilities[i]), note.empty() ? "" : "; ",
                                 note, control);
  for (std::size_t t = 0; t < chosen; ++t)
    if (!map.reasons[i][t].empty())
      text += fmt::format("; {}: {}", map.names[t], map.reasons[i][t]);
  return text;
}

ConnectivityReport World::connectivity() const {
  return detail::report_connectivity(state());
}

}  // namespace shoal

namespace shoal::observe {

std::string write_flight_record(const World& world, const std::string& directory) {
  detail::WorldState& state = *state_of(world.team()).world;
  return detail::record::write_one(state.recorder().world(), state.my_pe(), directory);
}

}  // namespace shoal::observe
