// SPDX-License-Identifier: Apache-2.0
// Put with signal of every type: who sees the signal sees the data.
#include <shmem.h>

#include "check.h"

enum { kCount = 500 };

static int me, n, next, last;
static uint64_t sig, expected, back;
static void* heap;

// The neighbour may write again once this PE has answered.
static void answer(void) {
  shmem_signal_add(&back, 1, last);
  shmem_signal_wait_until(&back, SHMEM_CMP_GE, expected);
}

#define TEST(TYPE, ELEMENT, NAME)                                                               \
  {                                                                                             \
    ELEMENT own[kCount];                                                                        \
    ELEMENT* dest = heap;                                                                       \
    for (int form = 0; form < 4; ++form) {                                                      \
      ++expected;                                                                               \
      memset(own, (int)(expected * 16 + me) & 0x7f, sizeof own);                                \
      if (form == 0)                                                                            \
        shmem_##NAME##_signal(dest, own, kCount, &sig, expected, SHMEM_SIGNAL_SET, next);       \
      if (form == 1)                                                                            \
        shmem_##NAME##_signal_nbi(dest, own, kCount, &sig, 1, SHMEM_SIGNAL_ADD, next);          \
      if (form == 2)                                                                            \
        shmem_ctx_##NAME##_signal(ctx, dest, own, kCount, &sig, 1, SHMEM_SIGNAL_ADD, next);     \
      if (form == 3)                                                                            \
        shmem_ctx_##NAME##_signal_nbi(ctx, dest, own, kCount, &sig, expected, SHMEM_SIGNAL_SET, \
                                      next);                                                    \
      CHECK(shmem_signal_wait_until(&sig, SHMEM_CMP_EQ, expected) == expected);                 \
      CHECK(shmem_signal_fetch(&sig) == expected);                                              \
      unsigned char bytes[sizeof own];                                                          \
      memcpy(bytes, dest, sizeof bytes);                                                        \
      for (size_t i = 0; i < sizeof bytes; ++i)                                                 \
        CHECK(bytes[i] == ((expected * 16 + (uint64_t)last) & 0x7f));                           \
      shmem_ctx_quiet(ctx);                                                                     \
      shmem_quiet();                                                                            \
      answer();                                                                                 \
    }                                                                                           \
  }

int main(void) {
  shmem_init();
  me = shmem_my_pe();
  n = shmem_n_pes();
  next = (me + 1) % n;
  last = (me + n - 1) % n;
  heap = shmem_malloc(kCount * 16);
  shmem_ctx_t ctx;
  CHECK(shmem_ctx_create(0, &ctx) == 0);
#define TEST_TYPE(TYPE, NAME) TEST(TYPE, TYPE, NAME##_put)
  SHOAL_SHMEM_RMA_TYPES(TEST_TYPE)
  typedef struct {
    uint64_t low, high;
  } Wide;
  TEST(void, uint8_t, put8)
  TEST(void, uint16_t, put16)
  TEST(void, uint32_t, put32)
  TEST(void, uint64_t, put64)
  TEST(void, Wide, put128)
  TEST(void, char, putmem)

  // Signals without data, with a context, and with no elements.
  shmem_barrier_all();
  sig = 0;
  shmem_barrier_all();
  shmem_signal_set(&sig, 3, next);
  CHECK(shmem_signal_wait_until(&sig, SHMEM_CMP_NE, 0) == 3);
  shmem_barrier_all();
  shmem_ctx_signal_set(ctx, &sig, 5, next);
  shmem_ctx_signal_add(ctx, &sig, 2, next);
  CHECK(shmem_signal_wait_until(&sig, SHMEM_CMP_GT, 5) == 7);
  shmem_barrier_all();
  shmem_putmem_signal(NULL, NULL, 0, &sig, 1, SHMEM_SIGNAL_ADD, next);
  CHECK(shmem_signal_wait_until(&sig, SHMEM_CMP_GE, 8) == 8);

  // Long data, which travel apart from their signal.
  enum { kLong = 20000, kRounds = 100 };
  uint64_t* const there = shmem_calloc(kLong, sizeof *there);
  uint64_t* const here = shmem_malloc(kLong * sizeof *here);
  for (uint64_t round = 1; round <= kRounds; ++round) {
    for (int i = 0; i < kLong; ++i) here[i] = round * kLong + (uint64_t)i;
    shmem_uint64_put_signal(there, here, kLong, &sig, 100 + round, SHMEM_SIGNAL_SET, next);
    shmem_signal_wait_until(&sig, SHMEM_CMP_EQ, 100 + round);
    for (int i = 0; i < kLong; ++i) CHECK(there[i] == round * kLong + (uint64_t)i);
    shmem_barrier_all();
  }
  shmem_ctx_destroy(ctx);
  shmem_finalize();
  return 0;
}
