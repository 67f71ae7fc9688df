// SPDX-License-Identifier: Apache-2.0
// agreement.hpp: small collective decisions of a group's members, over the team's exchange.
#pragma once

#include "ep/state.hpp"

namespace shoal::ep::detail {

/// Checks the options on every member and that they are the same everywhere and all members reach
/// each other. Collective; throws the same error on all members, or returns a state without memory.
std::shared_ptr<GroupState> agree_on_group(const Team& team, const GroupOptions& options);

/// Whether `mine` holds on any PE of the world. Collective over the world, as releasing heap memory
/// is.
bool any_pe(const GroupState& state, bool mine, const char* what);

}  // namespace shoal::ep::detail
