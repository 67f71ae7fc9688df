// SPDX-License-Identifier: Apache-2.0
// staging.hpp: host memory of every PE for data on their way between GPUs and networks.
#pragma once

#include <cstddef>

namespace shoal::detail {

class WorldState;

/// Offset of `bytes` bytes of staging from the start of the segment, the same on all PEs.
/// Collective over the world. Throws Error{exhausted} on all PEs, naming SHOAL_STAGING_SIZE.
std::size_t allocate_staging(WorldState& state, std::size_t bytes);
/// Collective over the world.
void release_staging(WorldState& state, std::size_t offset);

}  // namespace shoal::detail
