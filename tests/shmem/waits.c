// SPDX-License-Identifier: Apache-2.0
// Waits and tests: every type, comparison and form, with status masks and empty sets.
#include <shmem.h>

#include "check.h"

enum { kVariables = 6 };

static int me, n, next;

#define TEST_TYPE(TYPE, NAME)                                                                      \
  static TYPE NAME##_vars[kVariables];                                                             \
  static void test_##NAME(void) {                                                                  \
    TYPE* vars = NAME##_vars;                                                                      \
    const TYPE values[kVariables] = {10, 11, 12, 13, 14, 15};                                      \
    const TYPE ones[kVariables] = {1, 1, 1, 1, 1, 1};                                              \
    const int skip[kVariables] = {1, 0, 0, 0, 0, 1};                                               \
    const int skip_all[kVariables] = {1, 1, 1, 1, 1, 1};                                           \
    size_t indices[kVariables];                                                                    \
    int seen[kVariables] = {0};                                                                    \
    memset(vars, 0, kVariables * sizeof(TYPE));                                                    \
    shmem_barrier_all();                                                                           \
    /* Nothing has arrived. */                                                                     \
    CHECK(shmem_##NAME##_test(vars, SHMEM_CMP_NE, 0) == 0);                                        \
    CHECK(shmem_##NAME##_test(vars, SHMEM_CMP_EQ, 0) == 1);                                        \
    CHECK(shmem_##NAME##_test(vars, SHMEM_CMP_GE, 0) == 1);                                        \
    CHECK(shmem_##NAME##_test(vars, SHMEM_CMP_LE, 0) == 1);                                        \
    CHECK(shmem_##NAME##_test(vars, SHMEM_CMP_LT, 1) == 1);                                        \
    CHECK(shmem_##NAME##_test(vars, SHMEM_CMP_GT, 0) == 0);                                        \
    CHECK(shmem_##NAME##_test_all(vars, kVariables, NULL, SHMEM_CMP_EQ, 1) == 0);                  \
    CHECK(shmem_##NAME##_test_any(vars, kVariables, NULL, SHMEM_CMP_EQ, 1) == SIZE_MAX);           \
    CHECK(shmem_##NAME##_test_some(vars, kVariables, indices, NULL, SHMEM_CMP_EQ, 1) == 0);        \
    CHECK(shmem_##NAME##_test_any_vector(vars, kVariables, NULL, SHMEM_CMP_EQ, values) ==          \
          SIZE_MAX);                                                                               \
    /* Sets of nothing. */                                                                         \
    CHECK(shmem_##NAME##_test_all(vars, 0, NULL, SHMEM_CMP_EQ, 1) == 1);                           \
    CHECK(shmem_##NAME##_test_all(vars, kVariables, skip_all, SHMEM_CMP_EQ, 1) == 1);              \
    shmem_##NAME##_wait_until_all(vars, 0, NULL, SHMEM_CMP_EQ, 1);                                 \
    shmem_##NAME##_wait_until_all(vars, kVariables, skip_all, SHMEM_CMP_EQ, 1);                    \
    CHECK(shmem_##NAME##_wait_until_any(vars, 0, NULL, SHMEM_CMP_EQ, 1) == SIZE_MAX);              \
    CHECK(shmem_##NAME##_wait_until_any(vars, kVariables, skip_all, SHMEM_CMP_EQ, 1) == SIZE_MAX); \
    CHECK(shmem_##NAME##_wait_until_some(vars, 0, indices, NULL, SHMEM_CMP_EQ, 1) == 0);           \
    CHECK(shmem_##NAME##_wait_until_some(vars, kVariables, indices, skip_all, SHMEM_CMP_EQ, 1) ==  \
          0);                                                                                      \
    shmem_barrier_all();                                                                           \
    /* The neighbour writes one after the other; each wait sees its own. */                        \
    for (int i = 0; i < kVariables; ++i)                                                           \
      shmem_##NAME##_atomic_set(&vars[i], (TYPE)(10 + i), next);                                   \
    shmem_##NAME##_wait_until(&vars[0], SHMEM_CMP_EQ, 10);                                         \
    shmem_##NAME##_wait_until(&vars[1], SHMEM_CMP_GT, 10);                                         \
    shmem_##NAME##_wait_until_all(vars, kVariables, NULL, SHMEM_CMP_GE, 10);                       \
    shmem_##NAME##_wait_until_all(vars, kVariables, skip, SHMEM_CMP_NE, 10);                       \
    shmem_##NAME##_wait_until_all_vector(vars, kVariables, NULL, SHMEM_CMP_EQ, values);            \
    CHECK(shmem_##NAME##_test_all(vars, kVariables, NULL, SHMEM_CMP_LT, 16) == 1);                 \
    CHECK(shmem_##NAME##_test_all(vars, kVariables, skip, SHMEM_CMP_LT, 15) == 1);                 \
    CHECK(shmem_##NAME##_test_all_vector(vars, kVariables, NULL, SHMEM_CMP_EQ, values) == 1);      \
    CHECK(shmem_##NAME##_test_all_vector(vars, kVariables, NULL, SHMEM_CMP_EQ, ones) == 0);        \
    CHECK(shmem_##NAME##_wait_until_any(vars, kVariables, NULL, SHMEM_CMP_EQ, 12) == 2);           \
    CHECK(shmem_##NAME##_test_any(vars, kVariables, NULL, SHMEM_CMP_EQ, 13) == 3);                 \
    CHECK(shmem_##NAME##_test_any(vars, kVariables, skip, SHMEM_CMP_EQ, 15) == SIZE_MAX);          \
    /* Any finds each in turn. */                                                                  \
    for (int i = 0; i < 3 * kVariables; ++i) {                                                     \
      ++seen[shmem_##NAME##_wait_until_any_vector(vars, kVariables, NULL, SHMEM_CMP_EQ, values)];  \
      ++seen[shmem_##NAME##_test_any_vector(vars, kVariables, NULL, SHMEM_CMP_EQ, values)];        \
    }                                                                                              \
    for (int i = 0; i < kVariables; ++i) CHECK(seen[i] > 0);                                       \
    CHECK(shmem_##NAME##_wait_until_some(vars, kVariables, indices, skip, SHMEM_CMP_GE, 12) == 3); \
    CHECK(indices[0] == 2 && indices[1] == 3 && indices[2] == 4);                                  \
    CHECK(shmem_##NAME##_test_some(vars, kVariables, indices, NULL, SHMEM_CMP_LE, 11) == 2);       \
    CHECK(indices[0] == 0 && indices[1] == 1);                                                     \
    CHECK(shmem_##NAME##_wait_until_some_vector(vars, kVariables, indices, skip, SHMEM_CMP_EQ,     \
                                                values) == 4);                                     \
    CHECK(indices[0] == 1 && indices[3] == 4);                                                     \
    CHECK(shmem_##NAME##_test_some_vector(vars, kVariables, indices, NULL, SHMEM_CMP_LT, ones) ==  \
          0);                                                                                      \
    shmem_barrier_all();                                                                           \
  }
SHOAL_SHMEM_AMO_TYPES(TEST_TYPE)

static short short_word;
static unsigned short ushort_word;
static long long_word;

int main(void) {
  shmem_init();
  me = shmem_my_pe();
  n = shmem_n_pes();
  next = (me + 1) % n;
#define RUN(TYPE, NAME) \
  if (runs_type(#NAME)) test_##NAME();
  SHOAL_SHMEM_AMO_TYPES(RUN)

  // Deprecated types and names.
  CHECK(shmem_short_test(&short_word, SHMEM_CMP_EQ, 0) == 1);
  CHECK(shmem_ushort_test(&ushort_word, SHMEM_CMP_GT, 0) == 0);
  int_vars[0] = 10;
  longlong_vars[0] = 10;
  shmem_barrier_all();
  shmem_short_p(&short_word, -3, next);
  shmem_ushort_p(&ushort_word, 65535, next);
  shmem_long_p(&long_word, 5, next);
  shmem_int_p(&int_vars[0], 7, next);
  shmem_longlong_p(&longlong_vars[0], 8, next);
  shmem_short_wait(&short_word, 0);
  shmem_short_wait_until(&short_word, SHMEM_CMP_LT, 0);
  shmem_ushort_wait_until(&ushort_word, _SHMEM_CMP_EQ, 65535);
  shmem_wait(&long_word, 0);
  shmem_long_wait(&long_word, 0);
  (shmem_wait_until)(&long_word, SHMEM_CMP_EQ, 5);
  shmem_int_wait(&int_vars[0], 10);
  shmem_longlong_wait(&longlong_vars[0], 10);
  CHECK(short_word == -3 && long_word == 5 && int_vars[0] == 7 && longlong_vars[0] == 8);
  shmem_finalize();
  return 0;
}
