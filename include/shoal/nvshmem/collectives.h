// SPDX-License-Identifier: Apache-2.0
// collectives.h: collectives over teams on the host, on streams and in kernels. All PEs of the team
// call in the same order with equal arguments; those on streams and in kernels, with barriers
// there, are one sequence, those of the host another. `dest` and `source` are symmetric and do not
// overlap; broadcast and reduce also take equal addresses. Reductions add in ascending order of
// PEs, with the same bits on every PE; on streams, NCCL may run large ones in its own order
// (SHOAL_COLLECTIVE_NCCL).
//
// `nelems` and `nreduce` count the elements of one block: `dest` of fcollect and alltoall and
// `source` of alltoall and reducescatter have a block for each PE of the team.
//
// The functions return 0. On streams they queue work and return. In kernels one thread, warp
// or block of each PE calls (shoal/nvshmem/device/collectives.cuh).
#ifndef SHOAL_NVSHMEM_HD
#error "part of nvshmem.h: include <nvshmem.h>"
#endif

#define SHOAL_NVSHMEM_DECLARE_BLOCKS(TYPE, NAME) \
  SHOAL_NVSHMEM_PAIR(int, NAME, nvshmem_team_t team, TYPE* dest, const TYPE* source, size_t nelems)
#define SHOAL_NVSHMEM_DECLARE_ROOTED(TYPE, NAME)                                     \
  SHOAL_NVSHMEM_PAIR(int, NAME, nvshmem_team_t team, TYPE* dest, const TYPE* source, \
                     size_t nelems, int root)
#define SHOAL_NVSHMEM_DECLARE_OP(TYPE, NAME, OP)           \
  SHOAL_NVSHMEM_DECLARE_BLOCKS(TYPE, NAME##_##OP##_reduce) \
  SHOAL_NVSHMEM_DECLARE_BLOCKS(TYPE, NAME##_##OP##_reducescatter)
#define SHOAL_NVSHMEM_DECLARE_TYPE(TYPE, NAME)         \
  SHOAL_NVSHMEM_DECLARE_ROOTED(TYPE, NAME##_broadcast) \
  SHOAL_NVSHMEM_DECLARE_BLOCKS(TYPE, NAME##_fcollect)  \
  SHOAL_NVSHMEM_DECLARE_BLOCKS(TYPE, NAME##_alltoall)  \
  SHOAL_NVSHMEM_DECLARE_OP(TYPE, NAME, sum)            \
  SHOAL_NVSHMEM_DECLARE_OP(TYPE, NAME, prod)           \
  SHOAL_NVSHMEM_DECLARE_OP(TYPE, NAME, min)            \
  SHOAL_NVSHMEM_DECLARE_OP(TYPE, NAME, max)
#define SHOAL_NVSHMEM_DECLARE_BITWISE(TYPE, NAME) \
  SHOAL_NVSHMEM_DECLARE_OP(TYPE, NAME, and)       \
  SHOAL_NVSHMEM_DECLARE_OP(TYPE, NAME, or)        \
  SHOAL_NVSHMEM_DECLARE_OP(TYPE, NAME, xor)
SHOAL_NVSHMEM_RMA_TYPES(SHOAL_NVSHMEM_DECLARE_TYPE)
SHOAL_SHMEM_BITWISE_REDUCE_TYPES(SHOAL_NVSHMEM_DECLARE_BITWISE)
// Routines that count in bytes.
SHOAL_NVSHMEM_DECLARE_ROOTED(void, broadcastmem)
SHOAL_NVSHMEM_DECLARE_BLOCKS(void, fcollectmem)
SHOAL_NVSHMEM_DECLARE_BLOCKS(void, alltoallmem)
#undef SHOAL_NVSHMEM_DECLARE_BLOCKS
#undef SHOAL_NVSHMEM_DECLARE_ROOTED
#undef SHOAL_NVSHMEM_DECLARE_OP
#undef SHOAL_NVSHMEM_DECLARE_TYPE
#undef SHOAL_NVSHMEM_DECLARE_BITWISE
