// SPDX-License-Identifier: Apache-2.0
// waits.h: wait and test on symmetric variables of this PE that other PEs change (OpenSHMEM 1.5,
// section 9.10). `status`: NULL, or an element per variable; nonzero leaves the variable out.
// Waits have no deadline; they end the program when another PE fails.
#ifndef SHOAL_SHMEM
#error "part of shmem.h: include <shmem.h>"
#endif

#define SHOAL_SHMEM_DECLARE(TYPE, NAME)                                                            \
  void SHOAL_SHMEM(NAME##_wait_until)(TYPE * ivar, int cmp, TYPE value);                           \
  int SHOAL_SHMEM(NAME##_test)(TYPE * ivar, int cmp, TYPE value);                                  \
  void SHOAL_SHMEM(NAME##_wait_until_all)(TYPE * ivars, size_t nelems, const int* status, int cmp, \
                                          TYPE value);                                             \
  size_t SHOAL_SHMEM(NAME##_wait_until_any)(TYPE * ivars, size_t nelems, const int* status,        \
                                            int cmp, TYPE value);                                  \
  size_t SHOAL_SHMEM(NAME##_wait_until_some)(TYPE * ivars, size_t nelems, size_t* indices,         \
                                             const int* status, int cmp, TYPE value);              \
  void SHOAL_SHMEM(NAME##_wait_until_all_vector)(TYPE * ivars, size_t nelems, const int* status,   \
                                                 int cmp, const TYPE* values);                     \
  size_t SHOAL_SHMEM(NAME##_wait_until_any_vector)(TYPE * ivars, size_t nelems, const int* status, \
                                                   int cmp, const TYPE* values);                   \
  size_t SHOAL_SHMEM(NAME##_wait_until_some_vector)(TYPE * ivars, size_t nelems, size_t* indices,  \
                                                    const int* status, int cmp,                    \
                                                    const TYPE* values);                           \
  int SHOAL_SHMEM(NAME##_test_all)(TYPE * ivars, size_t nelems, const int* status, int cmp,        \
                                   TYPE value);                                                    \
  size_t SHOAL_SHMEM(NAME##_test_any)(TYPE * ivars, size_t nelems, const int* status, int cmp,     \
                                      TYPE value);                                                 \
  size_t SHOAL_SHMEM(NAME##_test_some)(TYPE * ivars, size_t nelems, size_t* indices,               \
                                       const int* status, int cmp, TYPE value);                    \
  int SHOAL_SHMEM(NAME##_test_all_vector)(TYPE * ivars, size_t nelems, const int* status, int cmp, \
                                          const TYPE* values);                                     \
  size_t SHOAL_SHMEM(NAME##_test_any_vector)(TYPE * ivars, size_t nelems, const int* status,       \
                                             int cmp, const TYPE* values);                         \
  size_t SHOAL_SHMEM(NAME##_test_some_vector)(TYPE * ivars, size_t nelems, size_t* indices,        \
                                              const int* status, int cmp, const TYPE* values);
SHOAL_SHMEM_AMO_TYPES(SHOAL_SHMEM_DECLARE)
#undef SHOAL_SHMEM_DECLARE
