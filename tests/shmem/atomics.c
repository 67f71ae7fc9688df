// SPDX-License-Identifier: Apache-2.0
// Atomics of every type and operation, alone and under contention; deprecated names.
#include <shmem.h>

#include "check.h"

static int me, n, next;

// All PEs work on variables of PE 0: the sums of all must arrive.
#define TEST_EXTENDED(TYPE, NAME)                                                 \
  static TYPE NAME##_word;                                                        \
  static void extended_##NAME(shmem_ctx_t ctx) {                                  \
    TYPE* word = &NAME##_word;                                                    \
    TYPE fetched = 0;                                                             \
    *word = (TYPE)(me + 1);                                                       \
    shmem_barrier_all();                                                          \
    CHECK(shmem_##NAME##_atomic_fetch(word, next) == (TYPE)(next + 1));           \
    CHECK(shmem_ctx_##NAME##_atomic_fetch(ctx, word, next) == (TYPE)(next + 1));  \
    CHECK(shmem_##NAME##_fetch(word, next) == (TYPE)(next + 1));                  \
    shmem_##NAME##_atomic_fetch_nbi(&fetched, word, next);                        \
    shmem_quiet();                                                                \
    CHECK(fetched == (TYPE)(next + 1));                                           \
    shmem_ctx_##NAME##_atomic_fetch_nbi(ctx, &fetched, word, me);                 \
    shmem_ctx_quiet(ctx);                                                         \
    CHECK(fetched == (TYPE)(me + 1));                                             \
    shmem_barrier_all();                                                          \
    CHECK(shmem_##NAME##_atomic_swap(word, (TYPE)10, next) == (TYPE)(next + 1));  \
    CHECK(shmem_ctx_##NAME##_atomic_swap(ctx, word, (TYPE)11, next) == (TYPE)10); \
    CHECK(shmem_##NAME##_swap(word, (TYPE)12, next) == (TYPE)11);                 \
    shmem_##NAME##_atomic_swap_nbi(&fetched, word, (TYPE)13, next);               \
    shmem_quiet();                                                                \
    CHECK(fetched == (TYPE)12);                                                   \
    shmem_ctx_##NAME##_atomic_swap_nbi(ctx, &fetched, word, (TYPE)14, next);      \
    shmem_ctx_quiet(ctx);                                                         \
    CHECK(fetched == (TYPE)13);                                                   \
    shmem_##NAME##_atomic_set(word, (TYPE)15, next);                              \
    CHECK(shmem_##NAME##_atomic_fetch(word, next) == (TYPE)15);                   \
    shmem_ctx_##NAME##_atomic_set(ctx, word, (TYPE)16, next);                     \
    CHECK(shmem_##NAME##_atomic_fetch(word, next) == (TYPE)16);                   \
    shmem_##NAME##_set(word, (TYPE)17, next);                                     \
    CHECK(shmem_##NAME##_atomic_fetch(word, next) == (TYPE)17);                   \
    shmem_barrier_all();                                                          \
  }
SHOAL_SHMEM_EXTENDED_AMO_TYPES(TEST_EXTENDED)

#define TEST_STANDARD(TYPE, NAME)                                                \
  static void standard_##NAME(shmem_ctx_t ctx) {                                 \
    TYPE* word = &NAME##_word;                                                   \
    TYPE fetched = 0, total = 0;                                                 \
    *word = 5;                                                                   \
    shmem_barrier_all();                                                         \
    CHECK(shmem_##NAME##_atomic_compare_swap(word, 4, 1, next) == 5);            \
    CHECK(shmem_##NAME##_atomic_compare_swap(word, 5, 6, next) == 5);            \
    CHECK(shmem_ctx_##NAME##_atomic_compare_swap(ctx, word, 6, 7, next) == 6);   \
    CHECK(shmem_##NAME##_cswap(word, 7, 8, next) == 7);                          \
    shmem_##NAME##_atomic_compare_swap_nbi(&fetched, word, 8, 9, next);          \
    shmem_quiet();                                                               \
    CHECK(fetched == 8);                                                         \
    shmem_ctx_##NAME##_atomic_compare_swap_nbi(ctx, &fetched, word, 9, 0, next); \
    shmem_ctx_quiet(ctx);                                                        \
    CHECK(fetched == 9 && shmem_##NAME##_atomic_fetch(word, next) == 0);         \
    shmem_barrier_all();                                                         \
    for (int i = 0; i < 10; ++i) {                                               \
      shmem_##NAME##_atomic_inc(word, 0);                                        \
      shmem_ctx_##NAME##_atomic_inc(ctx, word, 0);                               \
      shmem_##NAME##_inc(word, 0);                                               \
      shmem_##NAME##_atomic_add(word, 2, 0);                                     \
      shmem_ctx_##NAME##_atomic_add(ctx, word, 3, 0);                            \
      shmem_##NAME##_add(word, 4, 0);                                            \
      shmem_##NAME##_atomic_fetch_inc(word, 0);                                  \
      shmem_ctx_##NAME##_atomic_fetch_inc(ctx, word, 0);                         \
      shmem_##NAME##_finc(word, 0);                                              \
      shmem_##NAME##_atomic_fetch_inc_nbi(&fetched, word, 0);                    \
      shmem_ctx_##NAME##_atomic_fetch_inc_nbi(ctx, &fetched, word, 0);           \
      shmem_##NAME##_atomic_fetch_add(word, 1, 0);                               \
      shmem_ctx_##NAME##_atomic_fetch_add(ctx, word, 1, 0);                      \
      shmem_##NAME##_fadd(word, 1, 0);                                           \
      shmem_##NAME##_atomic_fetch_add_nbi(&fetched, word, 1, 0);                 \
      shmem_ctx_##NAME##_atomic_fetch_add_nbi(ctx, &fetched, word, 1, 0);        \
      total += 22;                                                               \
    }                                                                            \
    shmem_ctx_quiet(ctx);                                                        \
    shmem_barrier_all();                                                         \
    CHECK(shmem_##NAME##_atomic_fetch(word, 0) == total * (TYPE)n);              \
    shmem_barrier_all();                                                         \
    /* Results of increments, and wrapping around. */                            \
    *word = (TYPE) - 1;                                                          \
    shmem_barrier_all();                                                         \
    CHECK(shmem_##NAME##_atomic_fetch_inc(word, next) == (TYPE) - 1);            \
    CHECK(shmem_##NAME##_atomic_fetch_add(word, 5, next) == 0);                  \
    CHECK(shmem_##NAME##_atomic_fetch(word, next) == 5);                         \
    shmem_barrier_all();                                                         \
  }
SHOAL_SHMEM_AMO_TYPES(TEST_STANDARD)

#define TEST_OP(TYPE, NAME, OP, START, OPERAND, RESULT)                                           \
  for (int form = 0; form < 6; ++form) {                                                          \
    TYPE fetched = (TYPE)(START);                                                                 \
    *word = (TYPE)(START);                                                                        \
    shmem_barrier_all();                                                                          \
    if (form == 0) shmem_##NAME##_atomic_##OP(word, (TYPE)(OPERAND), next);                       \
    if (form == 1) shmem_ctx_##NAME##_atomic_##OP(ctx, word, (TYPE)(OPERAND), next);              \
    if (form == 2) fetched = shmem_##NAME##_atomic_fetch_##OP(word, (TYPE)(OPERAND), next);       \
    if (form == 3)                                                                                \
      fetched = shmem_ctx_##NAME##_atomic_fetch_##OP(ctx, word, (TYPE)(OPERAND), next);           \
    if (form == 4) shmem_##NAME##_atomic_fetch_##OP##_nbi(&fetched, word, (TYPE)(OPERAND), next); \
    if (form == 5)                                                                                \
      shmem_ctx_##NAME##_atomic_fetch_##OP##_nbi(ctx, &fetched, word, (TYPE)(OPERAND), next);     \
    shmem_quiet();                                                                                \
    shmem_ctx_quiet(ctx);                                                                         \
    shmem_barrier_all();                                                                          \
    CHECK(fetched == (TYPE)(START));                                                              \
    CHECK(shmem_##NAME##_atomic_fetch(word, me) == (TYPE)(RESULT));                               \
    shmem_barrier_all();                                                                          \
  }
#define TEST_BITWISE(TYPE, NAME)                    \
  static void bitwise_##NAME(shmem_ctx_t ctx) {     \
    TYPE* word = &NAME##_word;                      \
    TEST_OP(TYPE, NAME, and, ~0 ^ 0x30, 0xf5, 0xc5) \
    TEST_OP(TYPE, NAME, or, 0x81, 0x0f, 0x8f)       \
    TEST_OP(TYPE, NAME, xor, 0x81, 0x0f, 0x8e)      \
  }
SHOAL_SHMEM_BITWISE_AMO_TYPES(TEST_BITWISE)

int main(void) {
  shmem_init();
  me = shmem_my_pe();
  n = shmem_n_pes();
  next = (me + 1) % n;
  shmem_ctx_t ctx;
  CHECK(shmem_ctx_create(SHMEM_CTX_SERIALIZED, &ctx) == 0);
#define RUN_EXTENDED(TYPE, NAME) \
  if (runs_type(#NAME)) extended_##NAME(ctx);
#define RUN_STANDARD(TYPE, NAME) \
  if (runs_type(#NAME)) standard_##NAME(ctx);
#define RUN_BITWISE(TYPE, NAME) \
  if (runs_type(#NAME)) bitwise_##NAME(ctx);
  SHOAL_SHMEM_EXTENDED_AMO_TYPES(RUN_EXTENDED)
  SHOAL_SHMEM_AMO_TYPES(RUN_STANDARD)
  SHOAL_SHMEM_BITWISE_AMO_TYPES(RUN_BITWISE)
  shmem_ctx_destroy(ctx);
  shmem_finalize();
  return 0;
}
