// SPDX-License-Identifier: Apache-2.0
// Active-set collectives, old names, cache control.
#include <complex.h>
#include <mpp/shmem.h>
#include <shmemx.h>

#include "check.h"

enum { kCount = 50 };

static long sync_array[_SHMEM_REDUCE_SYNC_SIZE + _SHMEM_BCAST_SYNC_SIZE];
static uint32_t in32[kCount * 16], out32[kCount * 16];
static uint64_t in64[kCount * 16], out64[kCount * 16];

#define SMALL(TYPE, pe, i) ((TYPE)(((pe) + (i)) % 3 + 1))
#define TEST_TO_ALL(TYPE, NAME, OP, EXPRESSION)                                               \
  if (runs_type(#NAME)) {                                                                     \
    static TYPE in[kCount], out[kCount], work[kCount / 2 + _SHMEM_REDUCE_MIN_WRKDATA_SIZE];   \
    for (int i = 0; i < kCount; ++i) in[i] = SMALL(TYPE, index, i);                           \
    shmem_barrier(start, log_stride, size, sync_array);                                       \
    shmem_##NAME##_##OP##_to_all(out, in, kCount, start, log_stride, size, work, sync_array); \
    for (int i = 0; i < kCount; ++i) {                                                        \
      TYPE a = SMALL(TYPE, 0, i);                                                             \
      for (int p = 1; p < size; ++p) {                                                        \
        const TYPE b = SMALL(TYPE, p, i);                                                     \
        a = (TYPE)(EXPRESSION);                                                               \
      }                                                                                       \
      CHECK(out[i] == a);                                                                     \
    }                                                                                         \
    shmem_barrier(start, log_stride, size, sync_array);                                       \
  }
#define TEST_BITWISE(TYPE, NAME)     \
  TEST_TO_ALL(TYPE, NAME, and, a& b) \
  TEST_TO_ALL(TYPE, NAME, or, a | b) \
  TEST_TO_ALL(TYPE, NAME, xor, a ^ b)
#define TEST_ORDERED(TYPE, NAME)              \
  TEST_TO_ALL(TYPE, NAME, max, b > a ? b : a) \
  TEST_TO_ALL(TYPE, NAME, min, b < a ? b : a)
#define TEST_ARITHMETIC(TYPE, NAME)   \
  TEST_TO_ALL(TYPE, NAME, sum, a + b) \
  TEST_TO_ALL(TYPE, NAME, prod, a* b)

#define TEST_MOVES(BITS)                                                                         \
  {                                                                                              \
    uint##BITS##_t *in = in##BITS, *out = out##BITS;                                             \
    for (int i = 0; i < kCount * 16; ++i) {                                                      \
      in[i] = (uint##BITS##_t)(index * 1000 + i);                                                \
      out[i] = 99;                                                                               \
    }                                                                                            \
    const int root = size - 1;                                                                   \
    (shmem_sync)(start, log_stride, size, sync_array);                                           \
    shmem_broadcast##BITS(out, in, kCount, root, start, log_stride, size, sync_array);           \
    for (int i = 0; i < kCount; ++i)                                                             \
      CHECK(out[i] == (index == root ? 99 : (uint##BITS##_t)(root * 1000 + i)));                 \
    shmem_fcollect##BITS(out, in, kCount, start, log_stride, size, sync_array);                  \
    for (int p = 0; p < size; ++p) CHECK(out[p * kCount + 7] == (uint##BITS##_t)(p * 1000 + 7)); \
    shmem_collect##BITS(out, in, (size_t)index + 1, start, log_stride, size, sync_array);        \
    for (int p = 0, at = 0; p < size; at += ++p) CHECK(out[at] == (uint##BITS##_t)(p * 1000));   \
    shmem_alltoall##BITS(out, in, kCount, start, log_stride, size, sync_array);                  \
    for (int p = 0; p < size; ++p)                                                               \
      CHECK(out[p * kCount] == (uint##BITS##_t)(p * 1000 + index * kCount));                     \
    shmem_alltoalls##BITS(out, in, 2, 1, 4, start, log_stride, size, sync_array);                \
    for (int p = 0; p < size; ++p)                                                               \
      CHECK(out[2 * (4 * p + 1)] == (uint##BITS##_t)(p * 1000 + index * 4 + 1));                 \
    (shmem_sync)(start, log_stride, size, sync_array);                                           \
  }

// Every collective on one active set, by its members.
static void test_set(int start, int log_stride, int size) {
  const int distance = shmem_my_pe() - start;
  if (distance < 0 || distance % (1 << log_stride) != 0 || distance >> log_stride >= size) return;
  const int index = distance >> log_stride;
  TEST_MOVES(32)
  TEST_MOVES(64)
  SHOAL_SHMEM_BITWISE_TO_ALL_TYPES(TEST_BITWISE)
  SHOAL_SHMEM_ORDERED_TO_ALL_TYPES(TEST_ORDERED)
  SHOAL_SHMEM_ARITHMETIC_TO_ALL_TYPES(TEST_ARITHMETIC)
}

int main(void) {
  start_pes(0);
  const int n = _num_pes();
  CHECK(_my_pe() == shmem_my_pe() && n == shmem_n_pes());
  for (size_t i = 0; i < sizeof sync_array / sizeof sync_array[0]; ++i)
    sync_array[i] = _SHMEM_SYNC_VALUE;
  shmem_barrier_all();
  test_set(0, 0, n);
  test_set(1, 0, n - 1);
  test_set(0, 1, (n + 1) / 2);
  test_set(1, 1, n / 2);  // at the same time as another set
  test_set(n - 1, 3, 1);
  test_set(0, 0, 2);
  test_set(1, 0, n - 1);
  shmem_set_cache_inv();
  shmem_set_cache_line_inv(in32);
  shmem_clear_cache_inv();
  shmem_clear_cache_line_inv(in32);
  shmem_udcflush();
  shmem_udcflush_line(in32);
  return 0;  // the end of main finalizes
}
