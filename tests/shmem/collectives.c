// SPDX-License-Identifier: Apache-2.0
// Collectives over teams: every type and operator, in place, of different sizes, scans.
#include <complex.h>
#include <shmem.h>

#include "check.h"

enum { kMost = 3000 };

static int me, n;
static shmem_team_t teams[3];  // all, half of them in reverse order, this PE alone

// Element i that member `pe` of a team contributes.
#define VALUE(TYPE, pe, i) ((TYPE)((pe) * 3 + (i) % 5 + 1))

#define ALLOCATE(TYPE)                                                 \
  TYPE* dest = shmem_calloc((size_t)(n + 1) * kMost, sizeof(TYPE));    \
  TYPE* source = shmem_malloc((size_t)(n + 1) * kMost * sizeof(TYPE)); \
  CHECK(dest != NULL && source != NULL);
#define RELEASE        \
  shmem_barrier_all(); \
  shmem_free(source);  \
  shmem_free(dest);

#define TEST_MOVES(TYPE, NAME)                                                                    \
  static TYPE NAME##_static_dest[8], NAME##_static_source[8];                                     \
  static void moves_##NAME(void) {                                                                \
    ALLOCATE(TYPE)                                                                                \
    const size_t counts[] = {0, 1, 17, 1000};                                                     \
    for (int t = 0; t < 3; ++t) {                                                                 \
      const shmem_team_t team = teams[t];                                                         \
      if (team == SHMEM_TEAM_INVALID) continue;                                                   \
      const int pe = shmem_team_my_pe(team), size = shmem_team_n_pes(team);                       \
      for (int c = 0; c < 4; ++c) {                                                               \
        const size_t count = counts[c];                                                           \
        const int root = c % size;                                                                \
        for (size_t i = 0; i < (size_t)size * count + 16; ++i)                                    \
          source[i] = VALUE(TYPE, pe, (int)i);                                                    \
        CHECK(shmem_team_sync(team) == 0);                                                        \
        CHECK(shmem_##NAME##_broadcast(team, dest, source, count, root) == 0);                    \
        for (size_t i = 0; i < count; ++i) CHECK(dest[i] == VALUE(TYPE, root, (int)i));           \
        CHECK(shmem_##NAME##_fcollect(team, dest, source, count) == 0);                           \
        for (int p = 0; p < size; ++p)                                                            \
          for (size_t i = 0; i < count; ++i)                                                      \
            CHECK(dest[(size_t)p * count + i] == VALUE(TYPE, p, (int)i));                         \
        CHECK(shmem_##NAME##_alltoall(team, dest, source, count) == 0);                           \
        for (int p = 0; p < size; ++p)                                                            \
          for (size_t i = 0; i < count; ++i)                                                      \
            CHECK(dest[(size_t)p * count + i] == VALUE(TYPE, p, (int)((size_t)pe * count + i)));  \
        /* Member p contributes p + count % 3 elements. */                                        \
        const size_t mine = (size_t)pe + count % 3;                                               \
        CHECK(shmem_##NAME##_collect(team, dest, source, mine) == 0);                             \
        const TYPE* at = dest;                                                                    \
        for (int p = 0; p < size; ++p)                                                            \
          for (size_t i = 0; i < (size_t)p + count % 3; ++i)                                      \
            CHECK(*at++ == VALUE(TYPE, p, (int)i));                                               \
        shmem_team_sync(team);                                                                    \
      }                                                                                           \
      /* Strides: 2 at the destination, 3 at the source, 4 elements for each. */                  \
      for (int i = 0; i < 12 * size; ++i) source[i] = VALUE(TYPE, pe, i);                         \
      for (int i = 0; i < 8 * size; ++i) dest[i] = 0;                                             \
      shmem_team_sync(team);                                                                      \
      CHECK(shmem_##NAME##_alltoalls(team, dest, source, 2, 3, 4) == 0);                          \
      for (int p = 0; p < size; ++p)                                                              \
        for (int i = 0; i < 4; ++i) {                                                             \
          CHECK(dest[2 * (4 * p + i)] == VALUE(TYPE, p, 3 * (4 * pe + i)));                       \
          CHECK(dest[2 * (4 * p + i) + 1] == 0);                                                  \
        }                                                                                         \
      shmem_team_sync(team);                                                                      \
    }                                                                                             \
    /* Between static variables, and in place. */                                                 \
    for (int i = 0; i < 8; ++i) NAME##_static_source[i] = VALUE(TYPE, me, i);                     \
    shmem_barrier_all();                                                                          \
    shmem_##NAME##_broadcast(SHMEM_TEAM_WORLD, NAME##_static_dest, NAME##_static_source, 8, 1);   \
    for (int i = 0; i < 8; ++i) CHECK(NAME##_static_dest[i] == VALUE(TYPE, 1, i));                \
    shmem_##NAME##_broadcast(SHMEM_TEAM_WORLD, NAME##_static_source, NAME##_static_source, 8, 0); \
    for (int i = 0; i < 8; ++i) CHECK(NAME##_static_source[i] == VALUE(TYPE, 0, i));              \
    RELEASE                                                                                       \
  }
SHOAL_SHMEM_RMA_TYPES(TEST_MOVES)

// Reductions of `count` elements by EXPRESSION over a and b, from member 0 upwards.
#define REDUCE(TYPE, NAME, OP, CONTRIBUTION, EXPRESSION)                          \
  for (int t = 0; t < 3; ++t) {                                                   \
    const shmem_team_t team = teams[t];                                           \
    if (team == SHMEM_TEAM_INVALID) continue;                                     \
    const int pe = shmem_team_my_pe(team), size = shmem_team_n_pes(team);         \
    const size_t counts[] = {0, 1, 33, kMost};                                    \
    for (int c = 0; c < 8; ++c) {                                                 \
      const size_t count = counts[c / 2];                                         \
      TYPE* const to = c % 2 == 0 ? dest : source; /* in place */                 \
      for (int i = 0; i < (int)count; ++i) source[i] = CONTRIBUTION(TYPE, pe, i); \
      shmem_team_sync(team);                                                      \
      CHECK(shmem_##NAME##_##OP##_reduce(team, to, source, count) == 0);          \
      for (int i = 0; i < (int)count; ++i) {                                      \
        TYPE a = CONTRIBUTION(TYPE, 0, i);                                        \
        for (int p = 1; p < size; ++p) {                                          \
          const TYPE b = CONTRIBUTION(TYPE, p, i);                                \
          a = (TYPE)(EXPRESSION);                                                 \
        }                                                                         \
        CHECK(to[i] == a);                                                        \
      }                                                                           \
      shmem_team_sync(team);                                                      \
    }                                                                             \
  }
// Small enough for products of 8 bits on four PEs.
#define SMALL(TYPE, pe, i) ((TYPE)(((pe) + (i)) % 3 + 1))
// All bits take part.
#define BITS(TYPE, pe, i) ((TYPE)(0x5a3cLL * ((pe) + 1) + (i)))
#define SIGNED(TYPE, pe, i) ((TYPE)(((pe) % 2 == 0 ? 1 : -1) * (((pe) + (i)) % 7)))

#define TEST_BITWISE(TYPE, NAME)         \
  static void bitwise_##NAME(void) {     \
    ALLOCATE(TYPE)                       \
    REDUCE(TYPE, NAME, and, BITS, a& b)  \
    REDUCE(TYPE, NAME, or, BITS, a | b)  \
    REDUCE(TYPE, NAME, xor, BITS, a ^ b) \
    RELEASE                              \
  }
SHOAL_SHMEM_BITWISE_REDUCE_TYPES(TEST_BITWISE)

#define TEST_ORDERED(TYPE, NAME)                   \
  static void ordered_##NAME(void) {               \
    ALLOCATE(TYPE)                                 \
    REDUCE(TYPE, NAME, max, SIGNED, b > a ? b : a) \
    REDUCE(TYPE, NAME, min, SIGNED, b < a ? b : a) \
    RELEASE                                        \
  }
SHOAL_SHMEM_ORDERED_REDUCE_TYPES(TEST_ORDERED)

#define TEST_ARITHMETIC(TYPE, NAME)                                                \
  static void arithmetic_##NAME(void) {                                            \
    ALLOCATE(TYPE)                                                                 \
    REDUCE(TYPE, NAME, sum, SMALL, a + b)                                          \
    REDUCE(TYPE, NAME, prod, SMALL, a* b)                                          \
    for (int t = 0; t < 3; ++t) {                                                  \
      const shmem_team_t team = teams[t];                                          \
      if (team == SHMEM_TEAM_INVALID) continue;                                    \
      const int pe = shmem_team_my_pe(team);                                       \
      for (int form = 0; form < 4; ++form) {                                       \
        TYPE* const to = form < 2 ? dest : source;                                 \
        for (int i = 0; i < 40; ++i) source[i] = SMALL(TYPE, pe, i);               \
        shmem_team_sync(team);                                                     \
        if (form % 2 == 0)                                                         \
          CHECK(shmem_##NAME##_sum_inscan(team, to, source, 40) == 0);             \
        else                                                                       \
          CHECK(shmem_##NAME##_sum_exscan(team, to, source, 40) == 0);             \
        for (int i = 0; i < 40; ++i) {                                             \
          TYPE sum = 0;                                                            \
          for (int p = 0; p < pe + (form % 2 == 0); ++p) sum += SMALL(TYPE, p, i); \
          CHECK(to[i] == sum);                                                     \
        }                                                                          \
        shmem_team_sync(team);                                                     \
      }                                                                            \
    }                                                                              \
    RELEASE                                                                        \
  }
SHOAL_SHMEM_ARITHMETIC_REDUCE_TYPES(TEST_ARITHMETIC)

static unsigned char bytes_in[64], bytes_out[64];

// Broadcasts in a row, of lengths around those at which their way changes, without any other call
// that the PEs have in common: a root may be many of them ahead.
static void broadcasts_in_a_row(shmem_team_t team) {
  enum { kMost = 70000 };
  const int calls = few() ? 200 : 700;
  static const int lengths[] = {1, 8, 56, 57, 64, 4095, 4096, 4097, 32768, 40000, 65537, kMost};
  enum { kLengths = sizeof lengths / sizeof lengths[0] };
  unsigned char* const in = shmem_malloc(kMost);
  unsigned char* const out = shmem_malloc(kMost);
  const int size = shmem_team_n_pes(team);
  for (int call = 0; call < calls; ++call) {
    // Most are short: their slots are used several times.
    const int length = call % 8 == 7 ? lengths[call / 8 % kLengths] : call % 57;
    const int root = call / 100 % size;
    if (length > 0) {
      in[0] = (unsigned char)(call + root);
      in[length - 1] = (unsigned char)(call + root);
    }
    CHECK(shmem_broadcastmem(team, out, in, (size_t)length, root) == 0);
    if (length > 0) {
      CHECK(out[0] == (unsigned char)(call + root));
      CHECK(out[length - 1] == (unsigned char)(call + root));
    }
  }
  shmem_free(out);
  shmem_free(in);
}

int main(void) {
  shmem_init();
  me = shmem_my_pe();
  n = shmem_n_pes();
  teams[0] = SHMEM_TEAM_WORLD;
  const int half = (n + 1) / 2;
  CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, n - 1, -2, n / 2, NULL, 0, &teams[1]) == 0);
  CHECK(half > 0);
  shmem_team_t row;
  CHECK(shmem_team_split_2d(SHMEM_TEAM_WORLD, 1, NULL, 0, &teams[2], NULL, 0, &row) == 0);
#define RUN_MOVES(TYPE, NAME) \
  if (runs_type(#NAME)) moves_##NAME();
#define RUN_BITWISE(TYPE, NAME) \
  if (runs_type(#NAME)) bitwise_##NAME();
#define RUN_ORDERED(TYPE, NAME) \
  if (runs_type(#NAME)) ordered_##NAME();
#define RUN_ARITHMETIC(TYPE, NAME) \
  if (runs_type(#NAME)) arithmetic_##NAME();
  SHOAL_SHMEM_RMA_TYPES(RUN_MOVES)
  SHOAL_SHMEM_BITWISE_REDUCE_TYPES(RUN_BITWISE)
  SHOAL_SHMEM_ORDERED_REDUCE_TYPES(RUN_ORDERED)
  SHOAL_SHMEM_ARITHMETIC_REDUCE_TYPES(RUN_ARITHMETIC)

  const shmem_team_t all = SHMEM_TEAM_WORLD;
  memset(bytes_in, me + 1, sizeof bytes_in);
  shmem_barrier_all();
  CHECK(shmem_broadcastmem(all, bytes_out, bytes_in, 5, n - 1) == 0 && bytes_out[4] == n);
  CHECK(shmem_fcollectmem(all, bytes_out, bytes_in, 2) == 0 && bytes_out[2 * n - 1] == n);
  CHECK(shmem_alltoallmem(all, bytes_out, bytes_in, 3) == 0 && bytes_out[3 * n - 1] == n);
  CHECK(shmem_collectmem(all, bytes_out, bytes_in, (size_t)me) == 0);
  if (n > 1) CHECK(bytes_out[0] == 2);
  memset(bytes_out, 0, sizeof bytes_out);
  shmem_sync_all();
  CHECK(shmem_alltoallsmem(all, bytes_out, bytes_in, 2, 1, 1) == 0);
  for (int pe = 0; pe < n; ++pe) CHECK(bytes_out[2 * pe] == pe + 1 && bytes_out[2 * pe + 1] == 0);
  broadcasts_in_a_row(all);
  shmem_finalize();
  return 0;
}
