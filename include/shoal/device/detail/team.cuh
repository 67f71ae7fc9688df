// SPDX-License-Identifier: Apache-2.0
// team.cuh: membership and barrier epochs of a team.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/device/types.hpp>

namespace shoal::device::detail {

/// Whether world PE `pe` belongs to the team.
__device__ inline bool is_member(const Team& team, Pe pe) {
  return (team.members[pe / 64] >> (pe % 64) & 1) != 0;
}

/// The epoch of the barrier after `last`. `last` may stem from an earlier team with this index.
__device__ inline std::uint64_t next_epoch(const Team& team, std::uint64_t last) {
  return (last >> Team::kEpochBits) == team.generation ? last + 1
                                                       : (team.generation << Team::kEpochBits) + 1;
}

}  // namespace shoal::device::detail
