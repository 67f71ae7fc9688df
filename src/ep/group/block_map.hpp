// SPDX-License-Identifier: Apache-2.0
// block_map.hpp: shows a block of a group to other programs of this host (shoal/memory_map.hpp).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "ep/group/state.hpp"
#include "shoal/memory_map.hpp"

namespace shoal::ep::detail {

/// Shows `bytes` bytes at `offset` of this PE's `memory` while the result lives. `blocks`: every
/// rank's copy as an address here; nullptr: out of reach.
shoal::detail::record::MapRecorder show_block(const GroupState& group, const std::string& memory,
                                              std::size_t offset, std::size_t bytes,
                                              std::span<std::byte* const> blocks,
                                              std::vector<observe::MemoryRegion> regions);

}  // namespace shoal::ep::detail
