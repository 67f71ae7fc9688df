// SPDX-License-Identifier: Apache-2.0
// order.h: ordering, barriers.
#ifndef SHOAL_NVSHMEM_HD
#error "part of nvshmem.h: include <nvshmem.h>"
#endif

SHOAL_NVSHMEM_HD void nvshmem_fence(void);
SHOAL_NVSHMEM_HD void nvshmem_quiet(void);
void nvshmemx_quiet_on_stream(cudaStream_t stream);

// A barrier also completes what this PE has put; a sync only waits for the other PEs. Barriers of
// the host, and those on streams and in kernels together, count separately. Return 0.
SHOAL_NVSHMEM_PAIR(int, barrier, nvshmem_team_t team)
SHOAL_NVSHMEM_HD void nvshmem_barrier_all(void);
SHOAL_NVSHMEM_PAIR(int, sync, nvshmem_team_t team)
SHOAL_NVSHMEM_PAIR(int, team_sync, nvshmem_team_t team)
SHOAL_NVSHMEM_HD void nvshmem_sync_all(void);
void nvshmemx_barrier_all_on_stream(cudaStream_t stream);
void nvshmemx_sync_all_on_stream(cudaStream_t stream);
