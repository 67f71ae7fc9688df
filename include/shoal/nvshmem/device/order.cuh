// SPDX-License-Identifier: Apache-2.0
// order.cuh: fence, quiet, barriers and syncs inside kernels. One thread, warp or block of each PE
// calls a barrier. Inside kernels a sync is a barrier.
#pragma once

#include <shoal/nvshmem/device/state.cuh>

namespace shoal::nvshmem {

/// Returns 0, or another value where the team does not exist or the deadline passed.
template <typename S>
__device__ int barrier(S scope, nvshmem_team_t id) {
  const DeviceTeam* const team = find_team(id);
  if (team == nullptr) return 1;
  bool ok = device::quiet(scope, world());
  ok = device::barrier(scope, world(), team->team) && ok;
  return ok ? 0 : 1;
}

}  // namespace shoal::nvshmem

SHOAL_NVSHMEM_DEFINE(void, nvshmem_fence, (void),
                     { shoal::device::fence(shoal::device::Thread{}, shoal::nvshmem::world()); })
SHOAL_NVSHMEM_DEFINE(void, nvshmem_quiet, (void),
                     { shoal::device::quiet(shoal::device::Thread{}, shoal::nvshmem::world()); })

#define SHOAL_NVSHMEM_BARRIER(RESULT, NAME, PARAMETERS, TEAM)                              \
  SHOAL_NVSHMEM_FORMS(RESULT, NAME, PARAMETERS, barrier, TEAM)                             \
  SHOAL_NVSHMEM_FORM(SHOAL_NVSHMEM_DEVICE, Warpgroup, RESULT, nvshmemx_##NAME##_warpgroup, \
                     PARAMETERS, barrier, TEAM)
SHOAL_NVSHMEM_BARRIER(int, barrier, (nvshmem_team_t team), team)
SHOAL_NVSHMEM_BARRIER(int, sync, (nvshmem_team_t team), team)
SHOAL_NVSHMEM_BARRIER(int, team_sync, (nvshmem_team_t team), team)
SHOAL_NVSHMEM_BARRIER(void, barrier_all, (void), NVSHMEM_TEAM_WORLD)
SHOAL_NVSHMEM_BARRIER(void, sync_all, (void), NVSHMEM_TEAM_WORLD)
#undef SHOAL_NVSHMEM_BARRIER
