// SPDX-License-Identifier: Apache-2.0
// agreement.hpp: decisions that all ranks of a group make together.
#pragma once

#include "ep/group/state.hpp"

namespace shoal::ep::detail {

/// Checks the options on every rank and compares them. Collective. Returns a state without memory,
/// or throws on all ranks: where the options fail on this rank, its own error, else the first
/// failure of another rank with the number of its PE.
std::shared_ptr<GroupState> agree_on_group(const Team& team, const GroupOptions& options);

/// True if `mine` is true on any PE of the world. Collective over the world, like releasing heap
/// memory.
bool any_pe(const GroupState& state, bool mine, const char* what);

}  // namespace shoal::ep::detail
