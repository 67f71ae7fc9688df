// SPDX-License-Identifier: Apache-2.0
// collectives.h: collectives over teams on the host. All PEs of the team call in the same order
// with equal arguments. `dest` and `source` are symmetric and do not overlap; broadcast and
// reductions also take equal addresses. Reductions add in ascending order of PEs, with the same
// bits on every PE. The functions return 0.
#ifndef SHOAL_NVSHMEM_HD
#error "part of nvshmem.h: include <nvshmem.h>"
#endif

#define SHOAL_NVSHMEM_DECLARE(TYPE, NAME, OP)                                             \
  int nvshmem_##NAME##_##OP##_reduce(nvshmem_team_t team, TYPE* dest, const TYPE* source, \
                                     size_t nreduce);
#define SHOAL_NVSHMEM_DECLARE_TYPE(TYPE, NAME)                                        \
  int nvshmem_##NAME##_broadcast(nvshmem_team_t team, TYPE* dest, const TYPE* source, \
                                 size_t nelems, int root);                            \
  int nvshmem_##NAME##_fcollect(nvshmem_team_t team, TYPE* dest, const TYPE* source,  \
                                size_t nelems);                                       \
  int nvshmem_##NAME##_alltoall(nvshmem_team_t team, TYPE* dest, const TYPE* source,  \
                                size_t nelems);                                       \
  SHOAL_NVSHMEM_DECLARE(TYPE, NAME, sum)                                              \
  SHOAL_NVSHMEM_DECLARE(TYPE, NAME, prod)                                             \
  SHOAL_NVSHMEM_DECLARE(TYPE, NAME, min)                                              \
  SHOAL_NVSHMEM_DECLARE(TYPE, NAME, max)
#define SHOAL_NVSHMEM_DECLARE_BITWISE(TYPE, NAME) \
  SHOAL_NVSHMEM_DECLARE(TYPE, NAME, and)          \
  SHOAL_NVSHMEM_DECLARE(TYPE, NAME, or)           \
  SHOAL_NVSHMEM_DECLARE(TYPE, NAME, xor)
SHOAL_NVSHMEM_RMA_TYPES(SHOAL_NVSHMEM_DECLARE_TYPE)
SHOAL_SHMEM_BITWISE_REDUCE_TYPES(SHOAL_NVSHMEM_DECLARE_BITWISE)
#undef SHOAL_NVSHMEM_DECLARE
#undef SHOAL_NVSHMEM_DECLARE_TYPE
#undef SHOAL_NVSHMEM_DECLARE_BITWISE

// Of bytes.
int nvshmem_broadcastmem(nvshmem_team_t team, void* dest, const void* source, size_t nelems,
                         int root);
int nvshmem_fcollectmem(nvshmem_team_t team, void* dest, const void* source, size_t nelems);
int nvshmem_alltoallmem(nvshmem_team_t team, void* dest, const void* source, size_t nelems);
