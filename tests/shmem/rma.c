// SPDX-License-Identifier: Apache-2.0
// Put and get of every type, on the heap and on static variables, with and without a context.
#include <shmem.h>

#include "check.h"

enum { kCount = 37, kRoom = 256 };

// Element i that PE `pe` sends, as a value of each type.
#define VALUE(TYPE, pe, i) ((TYPE)((pe) * 40 + (i) + 1))
// 128-bit elements have no type.
typedef struct {
  uint64_t low, high;
} Wide;

static int me, n, next, last;
static void* heap;  // symmetric

#define TEST_TYPE(TYPE, NAME)                                                           \
  static TYPE NAME##_static[kRoom];                                                     \
  static void fill_##NAME(TYPE* to, int pe) {                                           \
    for (int i = 0; i < kCount; ++i) to[i] = VALUE(TYPE, pe, i);                        \
  }                                                                                     \
  static void check_##NAME(const TYPE* seen, int pe) {                                  \
    for (int i = 0; i < kCount; ++i) CHECK(seen[i] == VALUE(TYPE, pe, i));              \
  }                                                                                     \
  /* All PEs have written: checks, and clears for the next step. */                     \
  static void arrive_##NAME(TYPE* dest) {                                               \
    shmem_barrier_all();                                                                \
    check_##NAME(dest, last);                                                           \
    memset(dest, 0, kRoom * sizeof(TYPE));                                              \
    shmem_barrier_all();                                                                \
  }                                                                                     \
  static void test_##NAME(TYPE* dest, shmem_ctx_t ctx) {                                \
    TYPE own[kRoom] = {0}, got[kRoom] = {0};                                            \
    fill_##NAME(own, me);                                                               \
    memset(dest, 0, kRoom * sizeof(TYPE));                                              \
    shmem_barrier_all();                                                                \
    shmem_##NAME##_put(dest, own, kCount, next);                                        \
    arrive_##NAME(dest);                                                                \
    shmem_ctx_##NAME##_put(ctx, dest, own, kCount, next);                               \
    shmem_ctx_quiet(ctx);                                                               \
    arrive_##NAME(dest);                                                                \
    shmem_##NAME##_put_nbi(dest, own, kCount, next);                                    \
    arrive_##NAME(dest);                                                                \
    shmem_ctx_##NAME##_put_nbi(ctx, dest, own, kCount, next);                           \
    shmem_ctx_quiet(ctx);                                                               \
    arrive_##NAME(dest);                                                                \
    for (int i = 0; i < kCount; ++i) shmem_##NAME##_p(&dest[i], own[i], next);          \
    arrive_##NAME(dest);                                                                \
    for (int i = 0; i < kCount; ++i) shmem_ctx_##NAME##_p(ctx, &dest[i], own[i], next); \
    shmem_ctx_quiet(ctx);                                                               \
    arrive_##NAME(dest);                                                                \
    /* Gets of what the neighbour holds. */                                             \
    fill_##NAME(dest, me);                                                              \
    shmem_barrier_all();                                                                \
    shmem_##NAME##_get(got, dest, kCount, next);                                        \
    check_##NAME(got, next);                                                            \
    shmem_ctx_##NAME##_get(ctx, got, dest, kCount, last);                               \
    check_##NAME(got, last);                                                            \
    shmem_##NAME##_get_nbi(got, dest, kCount, next);                                    \
    shmem_quiet();                                                                      \
    check_##NAME(got, next);                                                            \
    shmem_ctx_##NAME##_get_nbi(ctx, got, dest, kCount, last);                           \
    shmem_ctx_quiet(ctx);                                                               \
    check_##NAME(got, last);                                                            \
    for (int i = 0; i < kCount; ++i) {                                                  \
      CHECK(shmem_##NAME##_g(&dest[i], next) == VALUE(TYPE, next, i));                  \
      CHECK(shmem_ctx_##NAME##_g(ctx, &dest[i], last) == VALUE(TYPE, last, i));         \
    }                                                                                   \
    shmem_barrier_all();                                                                \
    /* Every third element of the source to every second one. */                        \
    memset(dest, 0, kRoom * sizeof(TYPE));                                              \
    shmem_barrier_all();                                                                \
    shmem_##NAME##_iput(dest, own, 2, 3, 10, next);                                     \
    shmem_ctx_##NAME##_iput(ctx, &dest[100], own, 3, 1, 10, next);                      \
    shmem_##NAME##_ibput(&dest[140], own, 4, 5, 3, 5, next);                            \
    shmem_ctx_##NAME##_ibput(ctx, &dest[180], own, 4, 5, 3, 5, next);                   \
    shmem_ctx_quiet(ctx);                                                               \
    shmem_barrier_all();                                                                \
    for (int i = 0; i < 10; ++i) {                                                      \
      CHECK(dest[2 * i] == VALUE(TYPE, last, 3 * i) && dest[2 * i + 1] == 0);           \
      CHECK(dest[100 + 3 * i] == VALUE(TYPE, last, i) && dest[101 + 3 * i] == 0);       \
    }                                                                                   \
    for (int i = 0; i < 5; ++i) {                                                       \
      for (int j = 0; j < 3; ++j) {                                                     \
        CHECK(dest[140 + 4 * i + j] == VALUE(TYPE, last, 5 * i + j));                   \
        CHECK(dest[180 + 4 * i + j] == VALUE(TYPE, last, 5 * i + j));                   \
      }                                                                                 \
      CHECK(dest[143 + 4 * i] == 0);                                                    \
    }                                                                                   \
    shmem_barrier_all();                                                                \
    fill_##NAME(dest, me);                                                              \
    memset(got, 0, sizeof got);                                                         \
    shmem_barrier_all();                                                                \
    shmem_##NAME##_iget(got, dest, 2, 3, 10, next);                                     \
    shmem_ctx_##NAME##_iget(ctx, &got[100], dest, 3, 1, 10, next);                      \
    shmem_##NAME##_ibget(&got[140], dest, 4, 5, 3, 5, next);                            \
    shmem_ctx_##NAME##_ibget(ctx, &got[180], dest, 4, 5, 3, 5, next);                   \
    for (int i = 0; i < 10; ++i) {                                                      \
      CHECK(got[2 * i] == VALUE(TYPE, next, 3 * i) && got[2 * i + 1] == 0);             \
      CHECK(got[100 + 3 * i] == VALUE(TYPE, next, i) && got[101 + 3 * i] == 0);         \
    }                                                                                   \
    for (int i = 0; i < 5; ++i)                                                         \
      for (int j = 0; j < 3; ++j) {                                                     \
        CHECK(got[140 + 4 * i + j] == VALUE(TYPE, next, 5 * i + j));                    \
        CHECK(got[180 + 4 * i + j] == VALUE(TYPE, next, 5 * i + j));                    \
      }                                                                                 \
    shmem_barrier_all();                                                                \
    /* Nothing is moved, with any addresses. */                                         \
    shmem_##NAME##_put(NULL, NULL, 0, next);                                            \
    shmem_##NAME##_get(NULL, NULL, 0, next);                                            \
    shmem_##NAME##_iput(NULL, NULL, 1, 1, 0, next);                                     \
  }
SHOAL_SHMEM_RMA_TYPES(TEST_TYPE)

// Elements of BYTES bytes.
#define TEST_SIZE(PUT, GET, BYTES)                                                            \
  {                                                                                           \
    unsigned char own[kCount * 16], got[kCount * 16];                                         \
    unsigned char* dest = heap;                                                               \
    const size_t bytes = (size_t)kCount * (BYTES);                                            \
    memset(own, me + 1, sizeof own);                                                          \
    void (*const puts[])(void*, const void*, size_t, int) = {shmem_##PUT, shmem_##PUT##_nbi}; \
    void (*const gets[])(void*, const void*, size_t, int) = {shmem_##GET, shmem_##GET##_nbi}; \
    void (*const ctx_puts[])(shmem_ctx_t, void*, const void*, size_t, int) = {                \
        shmem_ctx_##PUT, shmem_ctx_##PUT##_nbi};                                              \
    void (*const ctx_gets[])(shmem_ctx_t, void*, const void*, size_t, int) = {                \
        shmem_ctx_##GET, shmem_ctx_##GET##_nbi};                                              \
    for (int form = 0; form < 4; ++form) {                                                    \
      memset(dest, 0, bytes + 1);                                                             \
      shmem_barrier_all();                                                                    \
      if (form < 2)                                                                           \
        puts[form](dest, own, kCount, next);                                                  \
      else                                                                                    \
        ctx_puts[form - 2](ctx, dest, own, kCount, next);                                     \
      shmem_ctx_quiet(ctx);                                                                   \
      shmem_barrier_all();                                                                    \
      for (size_t i = 0; i < bytes; ++i) CHECK(dest[i] == last + 1);                          \
      CHECK(dest[bytes] == 0);                                                                \
      memset(got, 0, sizeof got);                                                             \
      if (form < 2)                                                                           \
        gets[form](got, dest, kCount, next);                                                  \
      else                                                                                    \
        ctx_gets[form - 2](ctx, got, dest, kCount, next);                                     \
      shmem_ctx_quiet(ctx);                                                                   \
      shmem_quiet();                                                                          \
      for (size_t i = 0; i < bytes; ++i) CHECK(got[i] == me + 1);                             \
      shmem_barrier_all();                                                                    \
    }                                                                                         \
  }
#define TEST_STRIDED(BITS, UNIT)                                         \
  {                                                                      \
    UNIT own[kRoom], got[kRoom];                                         \
    UNIT* dest = heap;                                                   \
    memset(own, me + 1, sizeof own);                                     \
    memset(dest, 0, sizeof own);                                         \
    memset(got, 0, sizeof got);                                          \
    shmem_barrier_all();                                                 \
    shmem_iput##BITS(dest, own, 2, 3, 10, next);                         \
    shmem_ctx_iput##BITS(ctx, &dest[30], own, 2, 3, 10, next);           \
    shmem_ibput##BITS(&dest[60], own, 4, 5, 3, 5, next);                 \
    shmem_ctx_ibput##BITS(ctx, &dest[90], own, 4, 5, 3, 5, next);        \
    shmem_ctx_quiet(ctx);                                                \
    shmem_barrier_all();                                                 \
    UNIT theirs, zero;                                                   \
    memset(&theirs, last + 1, sizeof theirs);                            \
    memset(&zero, 0, sizeof zero);                                       \
    for (int i = 0; i < 20; ++i) {                                       \
      const UNIT* expected = i % 2 == 0 ? &theirs : &zero;               \
      CHECK(memcmp(&dest[i], expected, sizeof(UNIT)) == 0);              \
      CHECK(memcmp(&dest[30 + i], expected, sizeof(UNIT)) == 0);         \
      expected = i % 4 != 3 ? &theirs : &zero;                           \
      CHECK(memcmp(&dest[60 + i], expected, sizeof(UNIT)) == 0);         \
      CHECK(memcmp(&dest[90 + i], expected, sizeof(UNIT)) == 0);         \
    }                                                                    \
    shmem_iget##BITS(got, dest, 2, 2, 10, next);                         \
    shmem_ctx_iget##BITS(ctx, &got[30], &dest[30], 2, 2, 10, next);      \
    shmem_ibget##BITS(&got[60], &dest[60], 4, 4, 3, 5, next);            \
    shmem_ctx_ibget##BITS(ctx, &got[90], &dest[90], 4, 4, 3, 5, next);   \
    memset(&theirs, me + 1, sizeof theirs); /* what this PE put there */ \
    for (int i = 0; i < 20; ++i) {                                       \
      const UNIT* expected = i % 2 == 0 ? &theirs : &zero;               \
      CHECK(memcmp(&got[i], expected, sizeof(UNIT)) == 0);               \
      CHECK(memcmp(&got[30 + i], expected, sizeof(UNIT)) == 0);          \
      expected = i % 4 != 3 ? &theirs : &zero;                           \
      CHECK(memcmp(&got[60 + i], expected, sizeof(UNIT)) == 0);          \
      CHECK(memcmp(&got[90 + i], expected, sizeof(UNIT)) == 0);          \
    }                                                                    \
    shmem_barrier_all();                                                 \
  }

int main(void) {
  shmem_init();
  me = shmem_my_pe();
  n = shmem_n_pes();
  next = (me + 1) % n;
  last = (me + n - 1) % n;
  heap = shmem_malloc(kRoom * sizeof(Wide));
  shmem_ctx_t ctx;
  CHECK(shmem_ctx_create(0, &ctx) == 0);
#define RUN(TYPE, NAME)                   \
  if (runs_type(#NAME)) {                 \
    test_##NAME(heap, SHMEM_CTX_DEFAULT); \
    test_##NAME(NAME##_static, ctx);      \
  }
  SHOAL_SHMEM_RMA_TYPES(RUN)
  TEST_SIZE(put8, get8, 1)
  TEST_SIZE(put16, get16, 2)
  TEST_SIZE(put32, get32, 4)
  TEST_SIZE(put64, get64, 8)
  TEST_SIZE(put128, get128, 16)
  TEST_SIZE(putmem, getmem, 1)
  TEST_STRIDED(8, uint8_t)
  TEST_STRIDED(16, uint16_t)
  TEST_STRIDED(32, uint32_t)
  TEST_STRIDED(64, uint64_t)
  TEST_STRIDED(128, Wide)

  // More than a transport sends in one request.
  enum { kBig = 3 << 20 };
  unsigned char* big = shmem_malloc(kBig);
  unsigned char* source = malloc(kBig);
  for (int i = 0; i < kBig; ++i) source[i] = (unsigned char)(i * 7 + me);
  shmem_putmem_nbi(big, source, kBig, next);
  shmem_barrier_all();
  for (int i = 0; i < kBig; ++i) CHECK(big[i] == (unsigned char)(i * 7 + last));
  shmem_getmem(source, big, kBig, next);
  for (int i = 0; i < kBig; ++i) CHECK(source[i] == (unsigned char)(i * 7 + me));
  free(source);
  shmem_ctx_destroy(ctx);
  shmem_finalize();
  return 0;
}
