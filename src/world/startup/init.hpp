// SPDX-License-Identifier: Apache-2.0
// init.hpp: how a world starts.
#pragma once

#include <memory>

#include "world/state.hpp"

namespace shoal::detail {

/// World::open: runs the phases; what one PE cannot do, all of them throw.
std::shared_ptr<WorldState> open_world(WorldOptions options);

}  // namespace shoal::detail
