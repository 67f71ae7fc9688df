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

#define SHOAL_NVSHMEM_FORMS(NAME)                                                             \
  SHOAL_NVSHMEM_DEFINE(int, nvshmem_##NAME, (nvshmem_team_t team),                            \
                       { return shoal::nvshmem::barrier(shoal::device::Thread{}, team); })    \
  SHOAL_NVSHMEM_DEVICE(int, nvshmemx_##NAME##_warp, (nvshmem_team_t team),                    \
                       { return shoal::nvshmem::barrier(shoal::device::Warp{}, team); })      \
  SHOAL_NVSHMEM_DEVICE(int, nvshmemx_##NAME##_warpgroup, (nvshmem_team_t team),               \
                       { return shoal::nvshmem::barrier(shoal::device::Warpgroup{}, team); }) \
  SHOAL_NVSHMEM_DEVICE(int, nvshmemx_##NAME##_block, (nvshmem_team_t team),                   \
                       { return shoal::nvshmem::barrier(shoal::device::Block{}, team); })
#define SHOAL_NVSHMEM_ALL(NAME)                                                                   \
  SHOAL_NVSHMEM_DEFINE(void, nvshmem_##NAME, (void),                                              \
                       { shoal::nvshmem::barrier(shoal::device::Thread{}, NVSHMEM_TEAM_WORLD); }) \
  SHOAL_NVSHMEM_DEVICE(void, nvshmemx_##NAME##_warp, (void),                                      \
                       { shoal::nvshmem::barrier(shoal::device::Warp{}, NVSHMEM_TEAM_WORLD); })   \
  SHOAL_NVSHMEM_DEVICE(void, nvshmemx_##NAME##_warpgroup, (void), {                               \
    shoal::nvshmem::barrier(shoal::device::Warpgroup{}, NVSHMEM_TEAM_WORLD);                      \
  })                                                                                              \
  SHOAL_NVSHMEM_DEVICE(void, nvshmemx_##NAME##_block, (void),                                     \
                       { shoal::nvshmem::barrier(shoal::device::Block{}, NVSHMEM_TEAM_WORLD); })
SHOAL_NVSHMEM_FORMS(barrier)
SHOAL_NVSHMEM_FORMS(sync)
SHOAL_NVSHMEM_FORMS(team_sync)
SHOAL_NVSHMEM_ALL(barrier_all)
SHOAL_NVSHMEM_ALL(sync_all)
#undef SHOAL_NVSHMEM_FORMS
#undef SHOAL_NVSHMEM_ALL
