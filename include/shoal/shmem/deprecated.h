// SPDX-License-Identifier: Apache-2.0
// deprecated.h: routines that OpenSHMEM 1.5 deprecates or that older versions had: collectives over
// active sets, old names of atomics, waits on short variables, cache control. The active set is the
// PEs PE_start, PE_start + 2^logPE_stride, ... (PE_size of them). pSync and pWrk are not used.
#ifndef SHOAL_SHMEM
#error "part of shmem.h: include <shmem.h>"
#endif

void SHOAL_SHMEM(barrier)(int PE_start, int logPE_stride, int PE_size, long* pSync);
void SHOAL_SHMEM(sync)(int PE_start, int logPE_stride, int PE_size, long* pSync);

// PE_root is an index in the active set, whose dest is not written.
#define SHOAL_SHMEM_DECLARE(BITS)                                                                 \
  void SHOAL_SHMEM(broadcast##BITS)(void* dest, const void* source, size_t nelems, int PE_root,   \
                                    int PE_start, int logPE_stride, int PE_size, long* pSync);    \
  void SHOAL_SHMEM(collect##BITS)(void* dest, const void* source, size_t nelems, int PE_start,    \
                                  int logPE_stride, int PE_size, long* pSync);                    \
  void SHOAL_SHMEM(fcollect##BITS)(void* dest, const void* source, size_t nelems, int PE_start,   \
                                   int logPE_stride, int PE_size, long* pSync);                   \
  void SHOAL_SHMEM(alltoall##BITS)(void* dest, const void* source, size_t nelems, int PE_start,   \
                                   int logPE_stride, int PE_size, long* pSync);                   \
  void SHOAL_SHMEM(alltoalls##BITS)(void* dest, const void* source, ptrdiff_t dst, ptrdiff_t sst, \
                                    size_t nelems, int PE_start, int logPE_stride, int PE_size,   \
                                    long* pSync);
SHOAL_SHMEM_DECLARE(32)
SHOAL_SHMEM_DECLARE(64)
#undef SHOAL_SHMEM_DECLARE

#define SHOAL_SHMEM_DECLARE(TYPE, NAME, OP)                                                       \
  void SHOAL_SHMEM(NAME##_##OP##_to_all)(TYPE * dest, const TYPE* source, int nreduce,            \
                                         int PE_start, int logPE_stride, int PE_size, TYPE* pWrk, \
                                         long* pSync);
#define SHOAL_SHMEM_DECLARE_BITWISE(TYPE, NAME) \
  SHOAL_SHMEM_DECLARE(TYPE, NAME, and)          \
  SHOAL_SHMEM_DECLARE(TYPE, NAME, or)           \
  SHOAL_SHMEM_DECLARE(TYPE, NAME, xor)
#define SHOAL_SHMEM_DECLARE_ORDERED(TYPE, NAME) \
  SHOAL_SHMEM_DECLARE(TYPE, NAME, max)          \
  SHOAL_SHMEM_DECLARE(TYPE, NAME, min)
#define SHOAL_SHMEM_DECLARE_ARITHMETIC(TYPE, NAME) \
  SHOAL_SHMEM_DECLARE(TYPE, NAME, sum)             \
  SHOAL_SHMEM_DECLARE(TYPE, NAME, prod)
SHOAL_SHMEM_BITWISE_TO_ALL_TYPES(SHOAL_SHMEM_DECLARE_BITWISE)
SHOAL_SHMEM_ORDERED_TO_ALL_TYPES(SHOAL_SHMEM_DECLARE_ORDERED)
SHOAL_SHMEM_ARITHMETIC_TO_ALL_TYPES(SHOAL_SHMEM_DECLARE_ARITHMETIC)
#undef SHOAL_SHMEM_DECLARE
#undef SHOAL_SHMEM_DECLARE_BITWISE
#undef SHOAL_SHMEM_DECLARE_ORDERED
#undef SHOAL_SHMEM_DECLARE_ARITHMETIC

// Atomics.
#define SHOAL_SHMEM_DECLARE(TYPE, NAME)                          \
  TYPE SHOAL_SHMEM(NAME##_fetch)(const TYPE* source, int pe);    \
  void SHOAL_SHMEM(NAME##_set)(TYPE * dest, TYPE value, int pe); \
  TYPE SHOAL_SHMEM(NAME##_swap)(TYPE * dest, TYPE value, int pe);
SHOAL_SHMEM_EXTENDED_AMO_TYPES(SHOAL_SHMEM_DECLARE)
#undef SHOAL_SHMEM_DECLARE
#define SHOAL_SHMEM_DECLARE(TYPE, NAME)                                       \
  TYPE SHOAL_SHMEM(NAME##_cswap)(TYPE * dest, TYPE cond, TYPE value, int pe); \
  TYPE SHOAL_SHMEM(NAME##_finc)(TYPE * dest, int pe);                         \
  void SHOAL_SHMEM(NAME##_inc)(TYPE * dest, int pe);                          \
  TYPE SHOAL_SHMEM(NAME##_fadd)(TYPE * dest, TYPE value, int pe);             \
  void SHOAL_SHMEM(NAME##_add)(TYPE * dest, TYPE value, int pe);
SHOAL_SHMEM_AMO_TYPES(SHOAL_SHMEM_DECLARE)
#undef SHOAL_SHMEM_DECLARE

// Waits: shmem_wait returns when the variable differs from `value`.
void SHOAL_SHMEM(wait)(long* ivar, long value);
void SHOAL_SHMEM(short_wait)(short* ivar, short value);
void SHOAL_SHMEM(int_wait)(int* ivar, int value);
void SHOAL_SHMEM(long_wait)(long* ivar, long value);
void SHOAL_SHMEM(longlong_wait)(long long* ivar, long long value);
void SHOAL_SHMEM(wait_until)(long* ivar, int cmp, long value);
void SHOAL_SHMEM(short_wait_until)(short* ivar, int cmp, short value);
void SHOAL_SHMEM(ushort_wait_until)(unsigned short* ivar, int cmp, unsigned short value);
int SHOAL_SHMEM(short_test)(short* ivar, int cmp, short value);
int SHOAL_SHMEM(ushort_test)(unsigned short* ivar, int cmp, unsigned short value);

// Cache control: caches are coherent, so these do nothing.
void SHOAL_SHMEM(set_cache_inv)(void);
void SHOAL_SHMEM(set_cache_line_inv)(void* dest);
void SHOAL_SHMEM(clear_cache_inv)(void);
void SHOAL_SHMEM(clear_cache_line_inv)(void* dest);
void SHOAL_SHMEM(udcflush)(void);
void SHOAL_SHMEM(udcflush_line)(void* dest);
