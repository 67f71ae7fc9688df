// SPDX-License-Identifier: Apache-2.0
// atomics.h: atomic memory operations (OpenSHMEM 1.5, section 9.7). Each fetching routine returns
// the value before. The non-blocking forms store it to `fetch`, which is valid after shmem_quiet.
#ifndef SHOAL_SHMEM
#error "part of shmem.h: include <shmem.h>"
#endif

#define SHOAL_SHMEM_DECLARE(TYPE, NAME)                                                    \
  SHOAL_SHMEM_PAIR(TYPE, NAME##_atomic_fetch, const TYPE* source, int pe)                  \
  SHOAL_SHMEM_PAIR(void, NAME##_atomic_set, TYPE* dest, TYPE value, int pe)                \
  SHOAL_SHMEM_PAIR(TYPE, NAME##_atomic_swap, TYPE* dest, TYPE value, int pe)               \
  SHOAL_SHMEM_PAIR(void, NAME##_atomic_fetch_nbi, TYPE* fetch, const TYPE* source, int pe) \
  SHOAL_SHMEM_PAIR(void, NAME##_atomic_swap_nbi, TYPE* fetch, TYPE* dest, TYPE value, int pe)
SHOAL_SHMEM_EXTENDED_AMO_TYPES(SHOAL_SHMEM_DECLARE)
#undef SHOAL_SHMEM_DECLARE

#define SHOAL_SHMEM_DECLARE(TYPE, NAME)                                                            \
  SHOAL_SHMEM_PAIR(TYPE, NAME##_atomic_compare_swap, TYPE* dest, TYPE cond, TYPE value, int pe)    \
  SHOAL_SHMEM_PAIR(void, NAME##_atomic_compare_swap_nbi, TYPE* fetch, TYPE* dest, TYPE cond,       \
                   TYPE value, int pe)                                                             \
  SHOAL_SHMEM_PAIR(TYPE, NAME##_atomic_fetch_inc, TYPE* dest, int pe)                              \
  SHOAL_SHMEM_PAIR(void, NAME##_atomic_fetch_inc_nbi, TYPE* fetch, TYPE* dest, int pe)             \
  SHOAL_SHMEM_PAIR(void, NAME##_atomic_inc, TYPE* dest, int pe)                                    \
  SHOAL_SHMEM_PAIR(TYPE, NAME##_atomic_fetch_add, TYPE* dest, TYPE value, int pe)                  \
  SHOAL_SHMEM_PAIR(void, NAME##_atomic_fetch_add_nbi, TYPE* fetch, TYPE* dest, TYPE value, int pe) \
  SHOAL_SHMEM_PAIR(void, NAME##_atomic_add, TYPE* dest, TYPE value, int pe)
SHOAL_SHMEM_AMO_TYPES(SHOAL_SHMEM_DECLARE)
#undef SHOAL_SHMEM_DECLARE

#define SHOAL_SHMEM_DECLARE_OP(TYPE, NAME, OP)                                                \
  SHOAL_SHMEM_PAIR(TYPE, NAME##_atomic_fetch_##OP, TYPE* dest, TYPE value, int pe)            \
  SHOAL_SHMEM_PAIR(void, NAME##_atomic_fetch_##OP##_nbi, TYPE* fetch, TYPE* dest, TYPE value, \
                   int pe)                                                                    \
  SHOAL_SHMEM_PAIR(void, NAME##_atomic_##OP, TYPE* dest, TYPE value, int pe)
#define SHOAL_SHMEM_DECLARE(TYPE, NAME)   \
  SHOAL_SHMEM_DECLARE_OP(TYPE, NAME, and) \
  SHOAL_SHMEM_DECLARE_OP(TYPE, NAME, or)  \
  SHOAL_SHMEM_DECLARE_OP(TYPE, NAME, xor)
SHOAL_SHMEM_BITWISE_AMO_TYPES(SHOAL_SHMEM_DECLARE)
#undef SHOAL_SHMEM_DECLARE
#undef SHOAL_SHMEM_DECLARE_OP
