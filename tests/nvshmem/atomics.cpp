// SPDX-License-Identifier: Apache-2.0
// Atomics of every type: all PEs on the word of PE 0, in turn where the result tells the turn.
#include <nvshmem.h>

#include "check.h"

namespace {

int me, n;

#define CHECK_EXTENDED(TYPE, NAME)                                                    \
  void check_extended_##NAME(TYPE* word) {                                            \
    *word = static_cast<TYPE>(5);                                                     \
    nvshmem_barrier_all();                                                            \
    CHECK(nvshmem_##NAME##_atomic_fetch(word, (me + 1) % n) == static_cast<TYPE>(5)); \
    nvshmem_barrier_all();                                                            \
    nvshmem_##NAME##_atomic_set(word, static_cast<TYPE>(10 + me), (me + 1) % n);      \
    nvshmem_barrier_all();                                                            \
    CHECK(*word == static_cast<TYPE>(10 + (me + n - 1) % n));                         \
    CHECK(nvshmem_##NAME##_atomic_swap(word, static_cast<TYPE>(me), me) ==            \
          static_cast<TYPE>(10 + (me + n - 1) % n));                                  \
    CHECK(*word == static_cast<TYPE>(me));                                            \
    nvshmem_barrier_all();                                                            \
  }
SHOAL_SHMEM_EXTENDED_AMO_TYPES(CHECK_EXTENDED)

#define CHECK_STANDARD(TYPE, NAME)                                                           \
  void check_standard_##NAME(TYPE* word) {                                                   \
    *word = 0;                                                                               \
    nvshmem_barrier_all();                                                                   \
    CHECK(nvshmem_##NAME##_atomic_fetch_inc(word, 0) < static_cast<TYPE>(8 * n));            \
    CHECK(nvshmem_##NAME##_atomic_fetch_add(word, static_cast<TYPE>(2), 0) <                 \
          static_cast<TYPE>(8 * n));                                                         \
    nvshmem_##NAME##_atomic_inc(word, 0);                                                    \
    nvshmem_##NAME##_atomic_add(word, static_cast<TYPE>(4), 0);                              \
    nvshmem_barrier_all();                                                                   \
    CHECK(nvshmem_##NAME##_g(word, 0) == static_cast<TYPE>(8 * n));                          \
    nvshmem_barrier_all();                                                                   \
    const TYPE before = nvshmem_##NAME##_atomic_compare_swap(word, static_cast<TYPE>(8 * n), \
                                                             static_cast<TYPE>(1), 0);       \
    CHECK(before == static_cast<TYPE>(8 * n) || before == static_cast<TYPE>(1));             \
    nvshmem_barrier_all();                                                                   \
    CHECK(nvshmem_##NAME##_g(word, 0) == static_cast<TYPE>(1));                              \
    nvshmem_barrier_all();                                                                   \
  }
SHOAL_SHMEM_AMO_TYPES(CHECK_STANDARD)

#define CHECK_BITWISE(TYPE, NAME)                                                          \
  void check_bitwise_##NAME(TYPE* word) {                                                  \
    *word = static_cast<TYPE>(0xf0);                                                       \
    nvshmem_barrier_all();                                                                 \
    const int next = (me + 1) % n;                                                         \
    CHECK(nvshmem_##NAME##_atomic_fetch_or(word, static_cast<TYPE>(0x0f), next) == 0xf0);  \
    CHECK(nvshmem_##NAME##_atomic_fetch_and(word, static_cast<TYPE>(0x3c), next) == 0xff); \
    CHECK(nvshmem_##NAME##_atomic_fetch_xor(word, static_cast<TYPE>(0x30), next) == 0x3c); \
    nvshmem_##NAME##_atomic_or(word, static_cast<TYPE>(0x01), next);                       \
    nvshmem_##NAME##_atomic_and(word, static_cast<TYPE>(0x05), next);                      \
    nvshmem_##NAME##_atomic_xor(word, static_cast<TYPE>(0x10), next);                      \
    nvshmem_barrier_all();                                                                 \
    CHECK(*word == 0x15);                                                                  \
    nvshmem_barrier_all();                                                                 \
  }
SHOAL_SHMEM_BITWISE_AMO_TYPES(CHECK_BITWISE)

}  // namespace

int main() {
  nvshmem_init();
  me = nvshmem_my_pe();
  n = nvshmem_n_pes();
  void* const word = nvshmem_malloc(16);
#define CALL_EXTENDED(TYPE, NAME) check_extended_##NAME(static_cast<TYPE*>(word));
  SHOAL_SHMEM_EXTENDED_AMO_TYPES(CALL_EXTENDED)
#define CALL_STANDARD(TYPE, NAME) check_standard_##NAME(static_cast<TYPE*>(word));
  SHOAL_SHMEM_AMO_TYPES(CALL_STANDARD)
#define CALL_BITWISE(TYPE, NAME) check_bitwise_##NAME(static_cast<TYPE*>(word));
  SHOAL_SHMEM_BITWISE_AMO_TYPES(CALL_BITWISE)
  nvshmem_free(word);
  nvshmem_finalize();
  return 0;
}
