// SPDX-License-Identifier: Apache-2.0
// atomics.h: atomic memory operations on words of 4 or 8 bytes. Fetching ones return the value
// before.
#ifndef SHOAL_NVSHMEM_HD
#error "part of nvshmem.h: include <nvshmem.h>"
#endif

#define SHOAL_NVSHMEM_DECLARE(TYPE, NAME)                                            \
  SHOAL_NVSHMEM_HD TYPE nvshmem_##NAME##_atomic_fetch(const TYPE* source, int pe);   \
  SHOAL_NVSHMEM_HD void nvshmem_##NAME##_atomic_set(TYPE* dest, TYPE value, int pe); \
  SHOAL_NVSHMEM_HD TYPE nvshmem_##NAME##_atomic_swap(TYPE* dest, TYPE value, int pe);
SHOAL_SHMEM_EXTENDED_AMO_TYPES(SHOAL_NVSHMEM_DECLARE)
#undef SHOAL_NVSHMEM_DECLARE

#define SHOAL_NVSHMEM_DECLARE(TYPE, NAME)                                                       \
  SHOAL_NVSHMEM_HD TYPE nvshmem_##NAME##_atomic_compare_swap(TYPE* dest, TYPE cond, TYPE value, \
                                                             int pe);                           \
  SHOAL_NVSHMEM_HD TYPE nvshmem_##NAME##_atomic_fetch_inc(TYPE* dest, int pe);                  \
  SHOAL_NVSHMEM_HD TYPE nvshmem_##NAME##_atomic_fetch_add(TYPE* dest, TYPE value, int pe);      \
  SHOAL_NVSHMEM_HD void nvshmem_##NAME##_atomic_inc(TYPE* dest, int pe);                        \
  SHOAL_NVSHMEM_HD void nvshmem_##NAME##_atomic_add(TYPE* dest, TYPE value, int pe);
SHOAL_SHMEM_AMO_TYPES(SHOAL_NVSHMEM_DECLARE)
#undef SHOAL_NVSHMEM_DECLARE

#define SHOAL_NVSHMEM_DECLARE_OP(TYPE, NAME, OP)                                            \
  SHOAL_NVSHMEM_HD TYPE nvshmem_##NAME##_atomic_fetch_##OP(TYPE* dest, TYPE value, int pe); \
  SHOAL_NVSHMEM_HD void nvshmem_##NAME##_atomic_##OP(TYPE* dest, TYPE value, int pe);
#define SHOAL_NVSHMEM_DECLARE(TYPE, NAME)   \
  SHOAL_NVSHMEM_DECLARE_OP(TYPE, NAME, and) \
  SHOAL_NVSHMEM_DECLARE_OP(TYPE, NAME, or)  \
  SHOAL_NVSHMEM_DECLARE_OP(TYPE, NAME, xor)
SHOAL_SHMEM_BITWISE_AMO_TYPES(SHOAL_NVSHMEM_DECLARE)
#undef SHOAL_NVSHMEM_DECLARE
#undef SHOAL_NVSHMEM_DECLARE_OP
