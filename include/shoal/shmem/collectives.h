// SPDX-License-Identifier: Apache-2.0
// collectives.h: collectives over teams (OpenSHMEM 1.5, section 9.9). All PEs of the team call in
// the same order with equal arguments. `dest` and `source` are symmetric and do not overlap;
// broadcast and reductions also take equal addresses. Every routine returns 0.
#ifndef SHOAL_SHMEM
#error "part of shmem.h: include <shmem.h>"
#endif

void SHOAL_SHMEM(barrier_all)(void);
void SHOAL_SHMEM(sync_all)(void);
int SHOAL_SHMEM(team_sync)(shmem_team_t team);

#define SHOAL_SHMEM_DECLARE(TYPE, PREFIX, SUFFIX)                                                \
  int SHOAL_SHMEM(PREFIX##alltoall##SUFFIX)(shmem_team_t team, TYPE * dest, const TYPE* source,  \
                                            size_t nelems);                                      \
  int SHOAL_SHMEM(PREFIX##alltoalls##SUFFIX)(shmem_team_t team, TYPE * dest, const TYPE* source, \
                                             ptrdiff_t dst, ptrdiff_t sst, size_t nelems);       \
  int SHOAL_SHMEM(PREFIX##broadcast##SUFFIX)(shmem_team_t team, TYPE * dest, const TYPE* source, \
                                             size_t nelems, int root);                           \
  int SHOAL_SHMEM(PREFIX##collect##SUFFIX)(shmem_team_t team, TYPE * dest, const TYPE* source,   \
                                           size_t nelems);                                       \
  int SHOAL_SHMEM(PREFIX##fcollect##SUFFIX)(shmem_team_t team, TYPE * dest, const TYPE* source,  \
                                            size_t nelems);
#define SHOAL_SHMEM_DECLARE_TYPE(TYPE, NAME) SHOAL_SHMEM_DECLARE(TYPE, NAME##_, )
SHOAL_SHMEM_RMA_TYPES(SHOAL_SHMEM_DECLARE_TYPE)
SHOAL_SHMEM_DECLARE(void, , mem)  // bytes
#undef SHOAL_SHMEM_DECLARE
#undef SHOAL_SHMEM_DECLARE_TYPE

// Reductions, and (1.6) scans over the PEs of a team: PE i gets the sum of PEs 0 to i, or to i - 1.
#define SHOAL_SHMEM_DECLARE(TYPE, NAME, OP) \
  int SHOAL_SHMEM(NAME##_##OP)(shmem_team_t team, TYPE * dest, const TYPE* source, size_t nreduce);
#define SHOAL_SHMEM_DECLARE_BITWISE(TYPE, NAME) \
  SHOAL_SHMEM_DECLARE(TYPE, NAME, and_reduce)   \
  SHOAL_SHMEM_DECLARE(TYPE, NAME, or_reduce)    \
  SHOAL_SHMEM_DECLARE(TYPE, NAME, xor_reduce)
#define SHOAL_SHMEM_DECLARE_ORDERED(TYPE, NAME) \
  SHOAL_SHMEM_DECLARE(TYPE, NAME, max_reduce)   \
  SHOAL_SHMEM_DECLARE(TYPE, NAME, min_reduce)
#define SHOAL_SHMEM_DECLARE_ARITHMETIC(TYPE, NAME) \
  SHOAL_SHMEM_DECLARE(TYPE, NAME, sum_reduce)      \
  SHOAL_SHMEM_DECLARE(TYPE, NAME, prod_reduce)     \
  SHOAL_SHMEM_DECLARE(TYPE, NAME, sum_inscan)      \
  SHOAL_SHMEM_DECLARE(TYPE, NAME, sum_exscan)
SHOAL_SHMEM_BITWISE_REDUCE_TYPES(SHOAL_SHMEM_DECLARE_BITWISE)
SHOAL_SHMEM_ORDERED_REDUCE_TYPES(SHOAL_SHMEM_DECLARE_ORDERED)
SHOAL_SHMEM_ARITHMETIC_REDUCE_TYPES(SHOAL_SHMEM_DECLARE_ARITHMETIC)
#undef SHOAL_SHMEM_DECLARE
#undef SHOAL_SHMEM_DECLARE_BITWISE
#undef SHOAL_SHMEM_DECLARE_ORDERED
#undef SHOAL_SHMEM_DECLARE_ARITHMETIC
