// SPDX-License-Identifier: Apache-2.0
// placement.hpp: the backend for a team.
#pragma once

#include "ep/group/state.hpp"

namespace shoal::ep::detail {

/// The only choice between backends, and the nodes of the team as the chosen one sees them. Local.
GroupPlacement place_group(const Team& team);

}  // namespace shoal::ep::detail
