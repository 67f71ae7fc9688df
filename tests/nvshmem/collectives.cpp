// SPDX-License-Identifier: Apache-2.0
// Collectives of every type on the host: over all PEs, and in place.
#include <nvshmem.h>

#include "check.h"

namespace {

int me, n;
constexpr nvshmem_team_t all = NVSHMEM_TEAM_WORLD;

template <typename T>
T value(int number) {
  return static_cast<T>(static_cast<float>(number));
}
template <typename T>
bool is(T found, int number) {
  return static_cast<float>(found) == static_cast<float>(number);
}

#define CHECK_TYPE(TYPE, NAME)                                                         \
  void check_##NAME(TYPE* dest, TYPE* source) {                                        \
    for (int i = 0; i < 8; ++i) source[i] = value<TYPE>(10 * me + i);                  \
    nvshmem_barrier_all();                                                             \
    CHECK(nvshmem_##NAME##_broadcast(all, dest, source, 3, 2) == 0);                   \
    for (int i = 0; i < 3; ++i) CHECK(is(dest[i], 20 + i));                            \
    CHECK(nvshmem_##NAME##_fcollect(all, dest, source, 2) == 0);                       \
    for (int i = 0; i < 2 * n; ++i) CHECK(is(dest[i], 10 * (i / 2) + i % 2));          \
    CHECK(nvshmem_##NAME##_alltoall(all, dest, source, 2) == 0);                       \
    for (int i = 0; i < 2 * n; ++i) CHECK(is(dest[i], 10 * (i / 2) + 2 * me + i % 2)); \
    for (int i = 0; i < 8; ++i) source[i] = value<TYPE>(me + 1 + i / 4);               \
    nvshmem_barrier_all();                                                             \
    CHECK(nvshmem_##NAME##_sum_reduce(all, dest, source, 5) == 0);                     \
    CHECK(is(dest[0], 10) && is(dest[4], 14));                                         \
    CHECK(nvshmem_##NAME##_prod_reduce(all, dest, source, 5) == 0);                    \
    CHECK(is(dest[0], 24) && is(dest[4], 120));                                        \
    CHECK(nvshmem_##NAME##_min_reduce(all, dest, source, 5) == 0);                     \
    CHECK(is(dest[0], 1) && is(dest[4], 2));                                           \
    CHECK(nvshmem_##NAME##_max_reduce(all, dest, source, 5) == 0);                     \
    CHECK(is(dest[0], 4) && is(dest[4], 5));                                           \
    CHECK(nvshmem_##NAME##_sum_reducescatter(all, dest, source, 2) == 0);              \
    CHECK(is(dest[0], 10 + 4 * (me / 2)) && is(dest[1], 10 + 4 * (me / 2)));           \
    CHECK(nvshmem_##NAME##_prod_reducescatter(all, dest, source, 1) == 0);             \
    CHECK(is(dest[0], 24));                                                            \
    CHECK(nvshmem_##NAME##_min_reducescatter(all, dest, source, 2) == 0);              \
    CHECK(is(dest[1], 1 + me / 2));                                                    \
    CHECK(nvshmem_##NAME##_max_reducescatter(all, dest, source, 2) == 0);              \
    CHECK(is(dest[1], 4 + me / 2));                                                    \
    CHECK(nvshmem_##NAME##_sum_reduce(all, source, source, 4) == 0);                   \
    CHECK(is(source[0], 10));                                                          \
    nvshmem_barrier_all();                                                             \
  }
SHOAL_NVSHMEM_RMA_TYPES(CHECK_TYPE)

#define CHECK_BITWISE(TYPE, NAME)                                                     \
  void check_bits_##NAME(TYPE* dest, TYPE* source) {                                  \
    for (int i = 0; i < 4; ++i) source[i] = static_cast<TYPE>(0x40 | 1 << me);        \
    nvshmem_barrier_all();                                                            \
    CHECK(nvshmem_##NAME##_and_reduce(all, dest, source, 4) == 0 && dest[3] == 0x40); \
    CHECK(nvshmem_##NAME##_or_reduce(all, dest, source, 4) == 0 && dest[3] == 0x4f);  \
    CHECK(nvshmem_##NAME##_xor_reduce(all, dest, source, 4) == 0 && dest[3] == 0x0f); \
    CHECK(nvshmem_##NAME##_and_reducescatter(all, dest, source, 1) == 0);             \
    CHECK(dest[0] == 0x40);                                                           \
    CHECK(nvshmem_##NAME##_or_reducescatter(all, dest, source, 1) == 0);              \
    CHECK(dest[0] == 0x4f);                                                           \
    CHECK(nvshmem_##NAME##_xor_reducescatter(all, dest, source, 1) == 0);             \
    CHECK(dest[0] == 0x0f);                                                           \
    nvshmem_barrier_all();                                                            \
  }
SHOAL_SHMEM_BITWISE_REDUCE_TYPES(CHECK_BITWISE)

}  // namespace

int main() {
  nvshmem_init();
  me = nvshmem_my_pe();
  n = nvshmem_n_pes();
  CHECK(n == 4);
  void* const dest = nvshmem_malloc(256);
  void* const source = nvshmem_malloc(256);
#define CALL(TYPE, NAME) check_##NAME(static_cast<TYPE*>(dest), static_cast<TYPE*>(source));
  SHOAL_NVSHMEM_RMA_TYPES(CALL)
#define CALL_BITWISE(TYPE, NAME) \
  check_bits_##NAME(static_cast<TYPE*>(dest), static_cast<TYPE*>(source));
  SHOAL_SHMEM_BITWISE_REDUCE_TYPES(CALL_BITWISE)
  auto* const to = static_cast<unsigned char*>(dest);
  auto* const from = static_cast<unsigned char*>(source);
  for (int i = 0; i < 4; ++i) from[i] = static_cast<unsigned char>(10 * me + i);
  nvshmem_barrier_all();
  CHECK(nvshmem_broadcastmem(all, to, from, 4, 1) == 0 && to[3] == 13);
  CHECK(nvshmem_fcollectmem(all, to, from, 1) == 0 && to[3] == 30);
  CHECK(nvshmem_alltoallmem(all, to, from, 1) == 0 && to[3] == 30 + me);
  nvshmem_barrier_all();
  nvshmem_free(source);
  nvshmem_free(dest);
  nvshmem_finalize();
  return 0;
}
