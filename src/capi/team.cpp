// SPDX-License-Identifier: Apache-2.0
// team.cpp: handles of teams.
#include "capi/objects.hpp"

namespace shoal::capi {
namespace {

Team predefined_team(const World& world, std::int32_t which) {
  switch (which) {
    case SHOAL_TEAM_WORLD:
      return world.team();
    case SHOAL_TEAM_NODE:
      return world.node_team();
    case SHOAL_TEAM_SHARED:
      return world.shared_team();
    case SHOAL_TEAM_SAME_INDEX:
      return world.same_index_team();
    case SHOAL_TEAM_SELF:
      return world.self_team();
    default:
      fail(Code::invalid_argument,
           "SHOAL-N881: shoal_world_team: which is {}; allowed: 0 (SHOAL_TEAM_WORLD) to 4 "
           "(SHOAL_TEAM_SELF)",
           which);
  }
}

/// Returns the slot. A closed world has returned it already.
void return_slot(Team& team) {
  try {
    team.free();
  } catch (const Error& error) {
    if (error.code() != Code::closed) throw;
  }
}

}  // namespace
}  // namespace shoal::capi

using namespace shoal::capi;

shoal_status shoal_world_team(const shoal_world* world, int32_t which, shoal_team** team) {
  const char* call = "shoal_world_team";
  return guarded([&] {
    shoal_team*& out = required(team, call, "team");
    out = new shoal_team{predefined_team(required(world, call, "world").value, which), true};
  });
}

shoal_status shoal_team_split(const shoal_team* team, int32_t start, int32_t stride, int32_t count,
                              shoal_team** part) {
  const char* call = "shoal_team_split";
  return guarded([&] {
    shoal_team*& out = required(part, call, "part");
    shoal::Team made = required(team, call, "team").value.split_strided(start, stride, count);
    out = made.valid() ? new shoal_team{std::move(made), false} : nullptr;
  });
}

shoal_status shoal_team_destroy(shoal_team* team) {
  if (team == nullptr) return SHOAL_OK;
  const shoal_status status = guarded([&] {
    if (!team->predefined) return_slot(team->value);
  });
  delete team;
  return status;
}

shoal_status shoal_team_pe(const shoal_team* team, int32_t* pe) {
  const char* call = "shoal_team_pe";
  return guarded([&] { required(pe, call, "pe") = required(team, call, "team").value.my_pe(); });
}

shoal_status shoal_team_size(const shoal_team* team, int32_t* size) {
  const char* call = "shoal_team_size";
  return guarded([&] { required(size, call, "size") = required(team, call, "team").value.size(); });
}

shoal_status shoal_team_world_pe(const shoal_team* team, int32_t pe, int32_t* world_pe) {
  const char* call = "shoal_team_world_pe";
  return guarded([&] {
    required(world_pe, call, "world_pe") = required(team, call, "team").value.world_pe(pe);
  });
}
