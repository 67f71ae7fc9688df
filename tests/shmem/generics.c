// SPDX-License-Identifier: Apache-2.0
// The generic forms: each selects the routine of its type, with and without a context. Compiled as
// C and, by overloads.cpp, as C++.
#ifdef __cplusplus
#include <complex>
#else
#include <complex.h>
#endif
#include <shmem.h>

#include "check.h"

// Not the tables of the header: its generic forms expand them.
#define AMO_TYPES(X) \
  X(int) X(long) X(long long) X(unsigned int) X(unsigned long) X(unsigned long long)
#define EXTENDED_TYPES(X) AMO_TYPES(X) X(float) X(double)
#define RMA_TYPES(X) \
  EXTENDED_TYPES(X)  \
  X(long double) X(char) X(signed char) X(short) X(unsigned char) X(unsigned short)
#define ARITHMETIC_TYPES(X) \
  RMA_TYPES(X) X(SHOAL_SHMEM_COMPLEX(double)) X(SHOAL_SHMEM_COMPLEX(float))
#define BITWISE_TYPES(X) X(int) X(long) X(unsigned int) X(unsigned long) X(unsigned long long)
#define BITWISE_REDUCE_TYPES(X) \
  BITWISE_TYPES(X) X(signed char) X(short) X(unsigned char) X(unsigned short)

static int me, n, next;
static shmem_ctx_t ctx;
static uint64_t sig;

#define TEST_RMA(TYPE)                                                                     \
  {                                                                                        \
    static TYPE dest[16], source[16];                                                      \
    TYPE got[16];                                                                          \
    for (int i = 0; i < 16; ++i) source[i] = (TYPE)(i + 1);                                \
    shmem_barrier_all();                                                                   \
    shmem_put(dest, source, 2, me);                                                        \
    shmem_put(ctx, &dest[2], &source[2], 2, me);                                           \
    shmem_put_nbi(&dest[4], &source[4], 2, me);                                            \
    shmem_put_nbi(ctx, &dest[6], &source[6], 2, me);                                       \
    shmem_p(&dest[8], (TYPE)9, me);                                                        \
    shmem_p(ctx, &dest[9], (TYPE)10, me);                                                  \
    shmem_iput(&dest[10], &source[10], 1, 1, 1, me);                                       \
    shmem_iput(ctx, &dest[11], &source[11], 1, 1, 1, me);                                  \
    shmem_ibput(&dest[12], &source[12], 1, 1, 1, 1, me);                                   \
    shmem_ibput(ctx, &dest[13], &source[13], 1, 1, 1, 1, me);                              \
    shmem_put_signal(&dest[14], &source[14], 1, &sig, 1, SHMEM_SIGNAL_ADD, me);            \
    shmem_put_signal_nbi(ctx, &dest[15], &source[15], 1, &sig, 1, SHMEM_SIGNAL_ADD, me);   \
    shmem_quiet();                                                                         \
    shmem_ctx_quiet(ctx);                                                                  \
    CHECK(memcmp(dest, source, sizeof(TYPE)) == 0);                                        \
    for (int i = 0; i < 16; ++i) CHECK(dest[i] == source[i]);                              \
    const TYPE* readable = dest;                                                           \
    memset(got, 0, sizeof got);                                                            \
    shmem_get(got, readable, 2, me);                                                       \
    shmem_get(ctx, &got[2], dest + 2, 2, me);                                              \
    shmem_get_nbi(&got[4], &dest[4], 2, me);                                               \
    shmem_get_nbi(ctx, &got[6], &dest[6], 2, me);                                          \
    got[8] = shmem_g(&readable[8], me);                                                    \
    got[9] = shmem_g(ctx, &dest[9], me);                                                   \
    shmem_iget(&got[10], &dest[10], 1, 1, 2, me);                                          \
    shmem_iget(ctx, &got[12], &dest[12], 1, 1, 2, me);                                     \
    shmem_ibget(&got[14], &dest[14], 1, 1, 1, 1, me);                                      \
    shmem_ibget(ctx, &got[15], &dest[15], 1, 1, 1, 1, me);                                 \
    shmem_quiet();                                                                         \
    shmem_ctx_quiet(ctx);                                                                  \
    for (int i = 0; i < 16; ++i) CHECK(got[i] == source[i]);                               \
    shmem_barrier_all();                                                                   \
    CHECK(shmem_broadcast(SHMEM_TEAM_WORLD, dest, source, 16, 0) == 0);                    \
    CHECK(shmem_collect(SHMEM_TEAM_WORLD, dest, source, 1) == 0);                          \
    CHECK(shmem_fcollect(SHMEM_TEAM_WORLD, dest, source, 1) == 0);                         \
    CHECK(shmem_alltoall(SHMEM_TEAM_WORLD, dest, source, 1) == 0);                         \
    CHECK(shmem_alltoalls(SHMEM_TEAM_WORLD, dest, source, 1, 1, 1) == 0);                  \
    CHECK(dest[0] == (TYPE)(me + 1));                                                      \
    CHECK(shmem_max_reduce(SHMEM_TEAM_WORLD, dest, source, 2) == 0 && dest[1] == 2);       \
    CHECK(shmem_min_reduce(SHMEM_TEAM_WORLD, dest, source, 2) == 0 && dest[0] == (TYPE)1); \
    shmem_barrier_all();                                                                   \
  }
#define TEST_ARITHMETIC(TYPE)                                                               \
  {                                                                                         \
    static TYPE dest[2], source[2] = {1, 2};                                                \
    CHECK(shmem_sum_reduce(SHMEM_TEAM_WORLD, dest, source, 2) == 0 && dest[0] == (TYPE)n);  \
    CHECK(shmem_prod_reduce(SHMEM_TEAM_WORLD, dest, source, 2) == 0 && dest[0] == (TYPE)1); \
    CHECK(shmem_sum_inscan(SHMEM_TEAM_WORLD, dest, source, 1) == 0);                        \
    CHECK(dest[0] == (TYPE)(me + 1));                                                       \
    CHECK(shmem_sum_exscan(SHMEM_TEAM_WORLD, dest, source, 1) == 0 && dest[0] == (TYPE)me); \
    shmem_barrier_all();                                                                    \
  }
#define TEST_BITWISE_REDUCE(TYPE)                                                   \
  {                                                                                 \
    static TYPE dest, source = 5;                                                   \
    CHECK(shmem_and_reduce(SHMEM_TEAM_WORLD, &dest, &source, 1) == 0 && dest == 5); \
    CHECK(shmem_or_reduce(SHMEM_TEAM_WORLD, &dest, &source, 1) == 0 && dest == 5);  \
    CHECK(shmem_xor_reduce(SHMEM_TEAM_WORLD, &dest, &source, 1) == 0);              \
    CHECK(dest == (n % 2 == 0 ? 0 : 5));                                            \
    shmem_barrier_all();                                                            \
  }
#define TEST_EXTENDED(TYPE)                                   \
  {                                                           \
    static TYPE word;                                         \
    TYPE fetched = 0;                                         \
    shmem_atomic_set(&word, (TYPE)3, me);                     \
    shmem_atomic_set(ctx, &word, (TYPE)4, me);                \
    CHECK(shmem_atomic_swap(&word, (TYPE)5, me) == 4);        \
    CHECK(shmem_atomic_swap(ctx, &word, (TYPE)6, me) == 5);   \
    CHECK(shmem_atomic_fetch(&word, me) == 6);                \
    CHECK(shmem_atomic_fetch(ctx, &word, me) == 6);           \
    shmem_atomic_fetch_nbi(&fetched, &word, me);              \
    shmem_atomic_swap_nbi(ctx, &fetched, &word, (TYPE)7, me); \
    shmem_ctx_quiet(ctx);                                     \
    CHECK(fetched == 6);                                      \
    CHECK(shmem_swap(&word, (TYPE)8, me) == 7);               \
    shmem_set(&word, (TYPE)9, me);                            \
    CHECK(shmem_fetch(&word, me) == 9);                       \
  }
#define TEST_AMO(TYPE)                                                                    \
  {                                                                                       \
    static TYPE word, many[2];                                                            \
    TYPE fetched = 0;                                                                     \
    const TYPE values[2] = {0, 0};                                                        \
    size_t found[2];                                                                      \
    CHECK(shmem_atomic_compare_swap(&word, 0, 1, me) == 0);                               \
    CHECK(shmem_atomic_compare_swap(ctx, &word, 1, 2, me) == 1);                          \
    CHECK(shmem_cswap(&word, 2, 3, me) == 2);                                             \
    CHECK(shmem_atomic_fetch_inc(&word, me) == 3);                                        \
    CHECK(shmem_atomic_fetch_inc(ctx, &word, me) == 4);                                   \
    CHECK(shmem_finc(&word, me) == 5);                                                    \
    shmem_atomic_inc(&word, me);                                                          \
    shmem_atomic_inc(ctx, &word, me);                                                     \
    shmem_inc(&word, me);                                                                 \
    CHECK(shmem_atomic_fetch_add(&word, 1, me) == 9);                                     \
    CHECK(shmem_atomic_fetch_add(ctx, &word, 1, me) == 10);                               \
    CHECK(shmem_fadd(&word, 1, me) == 11);                                                \
    shmem_atomic_add(&word, 1, me);                                                       \
    shmem_atomic_add(ctx, &word, 1, me);                                                  \
    shmem_add(&word, 1, me);                                                              \
    shmem_atomic_compare_swap_nbi(&fetched, &word, 15, 16, me);                           \
    shmem_atomic_fetch_inc_nbi(ctx, &fetched, &word, me);                                 \
    shmem_atomic_fetch_add_nbi(&fetched, &word, 1, me);                                   \
    shmem_quiet();                                                                        \
    CHECK(fetched == 17);                                                                 \
    shmem_wait_until(&word, SHMEM_CMP_EQ, 18);                                            \
    CHECK(shmem_test(&word, SHMEM_CMP_GT, 17) == 1);                                      \
    shmem_wait_until_all(many, 2, NULL, SHMEM_CMP_EQ, 0);                                 \
    CHECK(shmem_wait_until_any(many, 2, NULL, SHMEM_CMP_EQ, 0) < 2);                      \
    CHECK(shmem_wait_until_some(many, 2, found, NULL, SHMEM_CMP_EQ, 0) == 2);             \
    shmem_wait_until_all_vector(many, 2, NULL, SHMEM_CMP_EQ, values);                     \
    CHECK(shmem_wait_until_any_vector(many, 2, NULL, SHMEM_CMP_EQ, values) < 2);          \
    CHECK(shmem_wait_until_some_vector(many, 2, found, NULL, SHMEM_CMP_EQ, values) == 2); \
    CHECK(shmem_test_all(many, 2, NULL, SHMEM_CMP_EQ, 0) == 1);                           \
    CHECK(shmem_test_any(many, 2, NULL, SHMEM_CMP_EQ, 0) < 2);                            \
    CHECK(shmem_test_some(many, 2, found, NULL, SHMEM_CMP_EQ, 0) == 2);                   \
    CHECK(shmem_test_all_vector(many, 2, NULL, SHMEM_CMP_EQ, values) == 1);               \
    CHECK(shmem_test_any_vector(many, 2, NULL, SHMEM_CMP_EQ, values) < 2);                \
    CHECK(shmem_test_some_vector(many, 2, found, NULL, SHMEM_CMP_EQ, values) == 2);       \
  }
#define TEST_BITWISE(TYPE)                                  \
  {                                                         \
    static TYPE word = 6;                                   \
    TYPE fetched = 0;                                       \
    CHECK(shmem_atomic_fetch_and(&word, 3, me) == 6);       \
    CHECK(shmem_atomic_fetch_or(ctx, &word, 8, me) == 2);   \
    CHECK(shmem_atomic_fetch_xor(&word, 1, me) == 10);      \
    shmem_atomic_and(ctx, &word, 14, me);                   \
    shmem_atomic_or(&word, 4, me);                          \
    shmem_atomic_xor(ctx, &word, 2, me);                    \
    shmem_atomic_fetch_and_nbi(&fetched, &word, 15, me);    \
    shmem_quiet();                                          \
    CHECK(fetched == 12);                                   \
    shmem_atomic_fetch_or_nbi(ctx, &fetched, &word, 1, me); \
    shmem_atomic_fetch_xor_nbi(&fetched, &word, 1, me);     \
    shmem_quiet();                                          \
    CHECK(fetched == 13);                                   \
  }

int main() {
  shmem_init();
  me = shmem_my_pe();
  n = shmem_n_pes();
  next = (me + 1) % n;
  CHECK(shmem_ctx_create(0, &ctx) == 0);
  RMA_TYPES(TEST_RMA)
  ARITHMETIC_TYPES(TEST_ARITHMETIC)
  BITWISE_REDUCE_TYPES(TEST_BITWISE_REDUCE)
  EXTENDED_TYPES(TEST_EXTENDED)
  AMO_TYPES(TEST_AMO)
  BITWISE_TYPES(TEST_BITWISE)
  static long sync_array[SHMEM_BARRIER_SYNC_SIZE];
  static int sized[4];
  static int64_t narrow;
  CHECK(shmem_sync(SHMEM_TEAM_WORLD) == 0);
  shmem_sync(0, 0, n, sync_array);
  shmem_p(&sized[1], 4, next);  // an int as value of each type
  shmem_p(&narrow, 4, next);
  shmem_barrier_all();
  CHECK(sized[1] == 4 && narrow == 4);
  shmem_finalize();
  return 0;
}
