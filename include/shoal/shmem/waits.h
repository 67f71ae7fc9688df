// SPDX-License-Identifier: Apache-2.0
// waits.h: wait and test on symmetric variables of this PE that other PEs change (OpenSHMEM 1.5,
// section 9.10). `status`: NULL, or an element per variable; nonzero leaves the variable out.
// Waits have no deadline; they end the program when another PE fails.
#ifndef SHOAL_SHMEM
#error "part of shmem.h: include <shmem.h>"
#endif

#define SHOAL_SHMEM_DECLARE_SET(RESULT, TYPE, NAME)                                              \
  RESULT SHOAL_SHMEM(NAME)(TYPE * ivars, size_t nelems, const int* status, int cmp, TYPE value); \
  RESULT SHOAL_SHMEM(NAME##_vector)(TYPE * ivars, size_t nelems, const int* status, int cmp,     \
                                    const TYPE* values);
#define SHOAL_SHMEM_DECLARE_SOME(TYPE, NAME)                                                \
  size_t SHOAL_SHMEM(NAME)(TYPE * ivars, size_t nelems, size_t* indices, const int* status, \
                           int cmp, TYPE value);                                            \
  size_t SHOAL_SHMEM(NAME##_vector)(TYPE * ivars, size_t nelems, size_t* indices,           \
                                    const int* status, int cmp, const TYPE* values);
#define SHOAL_SHMEM_DECLARE(TYPE, NAME)                                  \
  void SHOAL_SHMEM(NAME##_wait_until)(TYPE * ivar, int cmp, TYPE value); \
  int SHOAL_SHMEM(NAME##_test)(TYPE * ivar, int cmp, TYPE value);        \
  SHOAL_SHMEM_DECLARE_SET(void, TYPE, NAME##_wait_until_all)             \
  SHOAL_SHMEM_DECLARE_SET(size_t, TYPE, NAME##_wait_until_any)           \
  SHOAL_SHMEM_DECLARE_SOME(TYPE, NAME##_wait_until_some)                 \
  SHOAL_SHMEM_DECLARE_SET(int, TYPE, NAME##_test_all)                    \
  SHOAL_SHMEM_DECLARE_SET(size_t, TYPE, NAME##_test_any)                 \
  SHOAL_SHMEM_DECLARE_SOME(TYPE, NAME##_test_some)
SHOAL_SHMEM_AMO_TYPES(SHOAL_SHMEM_DECLARE)
#undef SHOAL_SHMEM_DECLARE
#undef SHOAL_SHMEM_DECLARE_SET
#undef SHOAL_SHMEM_DECLARE_SOME
