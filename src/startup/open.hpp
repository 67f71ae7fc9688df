// SPDX-License-Identifier: Apache-2.0
// open.hpp: the start of a world.
#pragma once

#include <memory>

#include "world/state.hpp"

namespace shoal::detail {

/// World::open: runs the phases of startup. A failure on one PE is thrown on all PEs.
std::shared_ptr<WorldState> open_world(WorldOptions options);

}  // namespace shoal::detail
