// SPDX-License-Identifier: Apache-2.0
// Put and get of every type and size, to the next PE and from it.
#include <nvshmem.h>
#include <nvshmemx.h>

#include "check.h"

namespace {

constexpr int kCount = 8;

/// A different value for each PE and index, which every type holds.
template <typename T>
T value(int pe, int i) {
  return static_cast<T>(static_cast<float>(10 * pe + i));
}

template <typename T>
bool same(T a, T b) {
  return static_cast<double>(static_cast<float>(a)) == static_cast<double>(static_cast<float>(b));
}

/// Functions that a test of one type calls.
template <typename T>
struct Functions {
  void (*put)(T*, const T*, size_t, int);
  void (*get)(T*, const T*, size_t, int);
  void (*iput)(T*, const T*, ptrdiff_t, ptrdiff_t, size_t, int);
  void (*iget)(T*, const T*, ptrdiff_t, ptrdiff_t, size_t, int);
};

template <typename T>
void check_moves(const Functions<T>& functions) {
  const int me = nvshmem_my_pe(), n = nvshmem_n_pes(), next = (me + 1) % n;
  const int previous = (me + n - 1) % n;
  T* const box = static_cast<T*>(nvshmem_calloc(kCount, sizeof(T)));
  T mine[kCount];
  for (int i = 0; i < kCount; ++i) mine[i] = value<T>(me, i);

  functions.put(box, mine, kCount, next);
  nvshmem_barrier_all();
  for (int i = 0; i < kCount; ++i) CHECK(same(box[i], value<T>(previous, i)));
  T got[kCount] = {};
  functions.get(got, box, kCount, next);
  nvshmem_quiet();
  for (int i = 0; i < kCount; ++i) CHECK(same(got[i], value<T>(me, i)));
  nvshmem_barrier_all();

  functions.iput(box, mine, 2, 3, 3, next);  // to 0 2 4, from 0 3 6
  nvshmem_barrier_all();
  for (int i = 0; i < kCount; ++i)
    CHECK(
        same(box[i], i % 2 == 0 && i < 6 ? value<T>(previous, i / 2 * 3) : value<T>(previous, i)));
  T spread[kCount] = {};
  functions.iget(spread, box, 3, 2, 3, next);
  for (int i = 0; i < 3; ++i) CHECK(same(spread[3 * i], value<T>(me, 3 * i)));
  CHECK(same(spread[1], T{}));
  nvshmem_barrier_all();
  nvshmem_free(box);
}

#define CHECK_TYPE(TYPE, NAME)                                                                    \
  void check_##NAME() {                                                                           \
    check_moves<TYPE>({nvshmem_##NAME##_put, nvshmem_##NAME##_get, nvshmem_##NAME##_iput,         \
                       nvshmem_##NAME##_iget});                                                   \
    check_moves<TYPE>({nvshmem_##NAME##_put_nbi, nvshmem_##NAME##_get_nbi, nvshmem_##NAME##_iput, \
                       nvshmem_##NAME##_iget});                                                   \
    const int me = nvshmem_my_pe(), n = nvshmem_n_pes();                                          \
    TYPE* const box = static_cast<TYPE*>(nvshmem_malloc(sizeof(TYPE)));                           \
    nvshmem_##NAME##_p(box, value<TYPE>(me, 7), (me + 1) % n);                                    \
    nvshmem_barrier_all();                                                                        \
    CHECK(same(*box, value<TYPE>((me + n - 1) % n, 7)));                                          \
    CHECK(same(nvshmem_##NAME##_g(box, (me + 1) % n), value<TYPE>(me, 7)));                       \
    nvshmem_barrier_all();                                                                        \
    nvshmem_free(box);                                                                            \
  }
SHOAL_NVSHMEM_RMA_TYPES(CHECK_TYPE)

/// Elements of `bytes` bytes: the whole block counts.
template <typename Put, typename Get>
void check_bytes(std::size_t bytes, Put put, Get get) {
  const int me = nvshmem_my_pe(), n = nvshmem_n_pes();
  constexpr std::size_t most = 16 * kCount;
  auto* const box = static_cast<unsigned char*>(nvshmem_calloc(most, 1));
  unsigned char mine[most], got[most] = {};
  for (std::size_t i = 0; i < most; ++i) mine[i] = static_cast<unsigned char>(64 * me + 1 + i % 60);
  put(box, mine, kCount, (me + 1) % n);
  nvshmem_barrier_all();
  get(got, box, kCount, (me + 1) % n);
  nvshmem_quiet();
  for (std::size_t i = 0; i < most; ++i) CHECK(got[i] == (i < bytes * kCount ? mine[i] : 0));
  nvshmem_barrier_all();
  nvshmem_free(box);
}
template <typename Put, typename Get>
void check_strided_bytes(std::size_t bytes, Put iput, Get iget) {
  const auto put = [&](void* to, const void* from, size_t count, int pe) {
    iput(to, from, 1, 1, count, pe);
  };
  const auto get = [&](void* to, const void* from, size_t count, int pe) {
    iget(to, from, 1, 1, count, pe);
  };
  check_bytes(bytes, put, get);
}

#define CHECK_SIZE(BITS)                                                     \
  void check_##BITS() {                                                      \
    check_bytes(BITS / 8, nvshmem_put##BITS, nvshmem_get##BITS);             \
    check_bytes(BITS / 8, nvshmem_put##BITS##_nbi, nvshmem_get##BITS##_nbi); \
    check_strided_bytes(BITS / 8, nvshmem_iput##BITS, nvshmem_iget##BITS);   \
  }
SHOAL_SHMEM_SIZES(CHECK_SIZE)

}  // namespace

int main() {
  nvshmem_init();
#define CALL(TYPE, NAME) check_##NAME();
  SHOAL_NVSHMEM_RMA_TYPES(CALL)
#define CALL_SIZE(BITS) check_##BITS();
  SHOAL_SHMEM_SIZES(CALL_SIZE)
  check_bytes(1, nvshmem_putmem, nvshmem_getmem);
  check_bytes(1, nvshmem_putmem_nbi, nvshmem_getmem_nbi);
  nvshmem_putmem(nullptr, nullptr, 0, 0);
  nvshmem_fence();
  nvshmem_finalize();
  return 0;
}
