// SPDX-License-Identifier: Apache-2.0
// team.hpp: how teams come to be.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "world/state.hpp"

namespace shoal::detail {

/// The teams that every world has (world, node, shared, same index, self); takes their indices.
void make_predefined_teams(WorldState& state);

/// A team of `members`, this PE among them, at an index and generation that all of them have agreed
/// on. Takes the index.
std::shared_ptr<TeamState> new_team(WorldState& state, std::int32_t index, std::uint64_t generation,
                                    std::vector<Pe> members);

/// Joins the team that is being made under `id`: World::make_team.
Team join_team(WorldState& state, std::uint64_t id, Pe size, Pe index);

}  // namespace shoal::detail
