// SPDX-License-Identifier: Apache-2.0
// overloads.h: the generic forms for C++. The type of the first pointer selects the routine; a
// context or a team may come before it.
#ifndef SHOAL_SHMEM_OVERLOADS_H
#define SHOAL_SHMEM_OVERLOADS_H

#ifndef SHOAL_SHMEM_H
#error "part of shmem.h: include <shmem.h>"
#endif

// (pointer, ...)
#define SHOAL_SHMEM_ON_POINTER(TYPE, NAME, SUFFIX)         \
  template <typename... Rest>                              \
  inline auto shmem##SUFFIX(TYPE* pointer, Rest... rest) { \
    return shmem_##NAME##SUFFIX(pointer, rest...);         \
  }
// The same, and with a context before it.
#define SHOAL_SHMEM_ON_CTX(TYPE, NAME, SUFFIX)                              \
  SHOAL_SHMEM_ON_POINTER(TYPE, NAME, SUFFIX)                                \
  template <typename... Rest>                                               \
  inline auto shmem##SUFFIX(shmem_ctx_t ctx, TYPE* pointer, Rest... rest) { \
    return shmem_ctx_##NAME##SUFFIX(ctx, pointer, rest...);                 \
  }
#define SHOAL_SHMEM_ON_CTX_CONST(TYPE, NAME, SUFFIX) SHOAL_SHMEM_ON_CTX(const TYPE, NAME, SUFFIX)
#define SHOAL_SHMEM_ON_POINTER_CONST(TYPE, NAME, SUFFIX) \
  SHOAL_SHMEM_ON_POINTER(const TYPE, NAME, SUFFIX)
// (team, pointer, ...)
#define SHOAL_SHMEM_ON_TEAM(TYPE, NAME, SUFFIX)                              \
  template <typename... Rest>                                                \
  inline int shmem##SUFFIX(shmem_team_t team, TYPE* pointer, Rest... rest) { \
    return shmem_##NAME##SUFFIX(team, pointer, rest...);                     \
  }
// Waits and tests on several variables, whose status may be NULL.
#define SHOAL_SHMEM_ON_SET(TYPE, NAME, SUFFIX)                                                    \
  inline auto shmem##SUFFIX(TYPE* ivars, size_t nelems, const int* status, int cmp, TYPE value) { \
    return shmem_##NAME##SUFFIX(ivars, nelems, status, cmp, value);                               \
  }                                                                                               \
  inline auto shmem##SUFFIX##_vector(TYPE* ivars, size_t nelems, const int* status, int cmp,      \
                                     const TYPE* values) {                                        \
    return shmem_##NAME##SUFFIX##_vector(ivars, nelems, status, cmp, values);                     \
  }
#define SHOAL_SHMEM_ON_SOME(TYPE, NAME, SUFFIX)                                               \
  inline size_t shmem##SUFFIX(TYPE* ivars, size_t nelems, size_t* indices, const int* status, \
                              int cmp, TYPE value) {                                          \
    return shmem_##NAME##SUFFIX(ivars, nelems, indices, status, cmp, value);                  \
  }                                                                                           \
  inline size_t shmem##SUFFIX##_vector(TYPE* ivars, size_t nelems, size_t* indices,           \
                                       const int* status, int cmp, const TYPE* values) {      \
    return shmem_##NAME##SUFFIX##_vector(ivars, nelems, indices, status, cmp, values);        \
  }

// Put and get.
SHOAL_SHMEM_DISTINCT_RMA_TYPES(SHOAL_SHMEM_ON_CTX, _put)
SHOAL_SHMEM_DISTINCT_RMA_TYPES(SHOAL_SHMEM_ON_CTX, _get)
SHOAL_SHMEM_DISTINCT_RMA_TYPES(SHOAL_SHMEM_ON_CTX, _put_nbi)
SHOAL_SHMEM_DISTINCT_RMA_TYPES(SHOAL_SHMEM_ON_CTX, _get_nbi)
SHOAL_SHMEM_DISTINCT_RMA_TYPES(SHOAL_SHMEM_ON_CTX, _p)
SHOAL_SHMEM_DISTINCT_RMA_TYPES(SHOAL_SHMEM_ON_CTX_CONST, _g)
SHOAL_SHMEM_DISTINCT_RMA_TYPES(SHOAL_SHMEM_ON_CTX, _iput)
SHOAL_SHMEM_DISTINCT_RMA_TYPES(SHOAL_SHMEM_ON_CTX, _iget)
SHOAL_SHMEM_DISTINCT_RMA_TYPES(SHOAL_SHMEM_ON_CTX, _ibput)
SHOAL_SHMEM_DISTINCT_RMA_TYPES(SHOAL_SHMEM_ON_CTX, _ibget)
SHOAL_SHMEM_DISTINCT_RMA_TYPES(SHOAL_SHMEM_ON_CTX, _put_signal)
SHOAL_SHMEM_DISTINCT_RMA_TYPES(SHOAL_SHMEM_ON_CTX, _put_signal_nbi)
// Atomics.
SHOAL_SHMEM_DISTINCT_EXTENDED_AMO_TYPES(SHOAL_SHMEM_ON_CTX_CONST, _atomic_fetch)
SHOAL_SHMEM_DISTINCT_EXTENDED_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_set)
SHOAL_SHMEM_DISTINCT_EXTENDED_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_swap)
SHOAL_SHMEM_DISTINCT_EXTENDED_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_fetch_nbi)
SHOAL_SHMEM_DISTINCT_EXTENDED_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_swap_nbi)
SHOAL_SHMEM_DISTINCT_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_compare_swap)
SHOAL_SHMEM_DISTINCT_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_compare_swap_nbi)
SHOAL_SHMEM_DISTINCT_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_fetch_inc)
SHOAL_SHMEM_DISTINCT_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_fetch_inc_nbi)
SHOAL_SHMEM_DISTINCT_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_inc)
SHOAL_SHMEM_DISTINCT_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_fetch_add)
SHOAL_SHMEM_DISTINCT_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_fetch_add_nbi)
SHOAL_SHMEM_DISTINCT_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_add)
SHOAL_SHMEM_DISTINCT_BITWISE_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_fetch_and)
SHOAL_SHMEM_DISTINCT_BITWISE_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_fetch_and_nbi)
SHOAL_SHMEM_DISTINCT_BITWISE_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_and)
SHOAL_SHMEM_DISTINCT_BITWISE_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_fetch_or)
SHOAL_SHMEM_DISTINCT_BITWISE_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_fetch_or_nbi)
SHOAL_SHMEM_DISTINCT_BITWISE_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_or)
SHOAL_SHMEM_DISTINCT_BITWISE_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_fetch_xor)
SHOAL_SHMEM_DISTINCT_BITWISE_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_fetch_xor_nbi)
SHOAL_SHMEM_DISTINCT_BITWISE_AMO_TYPES(SHOAL_SHMEM_ON_CTX, _atomic_xor)
// Deprecated names of atomics.
SHOAL_SHMEM_DISTINCT_EXTENDED_AMO_TYPES(SHOAL_SHMEM_ON_POINTER_CONST, _fetch)
SHOAL_SHMEM_DISTINCT_EXTENDED_AMO_TYPES(SHOAL_SHMEM_ON_POINTER, _set)
SHOAL_SHMEM_DISTINCT_EXTENDED_AMO_TYPES(SHOAL_SHMEM_ON_POINTER, _swap)
SHOAL_SHMEM_DISTINCT_AMO_TYPES(SHOAL_SHMEM_ON_POINTER, _cswap)
SHOAL_SHMEM_DISTINCT_AMO_TYPES(SHOAL_SHMEM_ON_POINTER, _finc)
SHOAL_SHMEM_DISTINCT_AMO_TYPES(SHOAL_SHMEM_ON_POINTER, _inc)
SHOAL_SHMEM_DISTINCT_AMO_TYPES(SHOAL_SHMEM_ON_POINTER, _fadd)
SHOAL_SHMEM_DISTINCT_AMO_TYPES(SHOAL_SHMEM_ON_POINTER, _add)
// Waits and tests.
SHOAL_SHMEM_DISTINCT_WAIT_TYPES(SHOAL_SHMEM_ON_POINTER, _wait_until)
SHOAL_SHMEM_DISTINCT_WAIT_TYPES(SHOAL_SHMEM_ON_POINTER, _test)
SHOAL_SHMEM_DISTINCT_AMO_TYPES(SHOAL_SHMEM_ON_SET, _wait_until_all)
SHOAL_SHMEM_DISTINCT_AMO_TYPES(SHOAL_SHMEM_ON_SET, _wait_until_any)
SHOAL_SHMEM_DISTINCT_AMO_TYPES(SHOAL_SHMEM_ON_SOME, _wait_until_some)
SHOAL_SHMEM_DISTINCT_AMO_TYPES(SHOAL_SHMEM_ON_SET, _test_all)
SHOAL_SHMEM_DISTINCT_AMO_TYPES(SHOAL_SHMEM_ON_SET, _test_any)
SHOAL_SHMEM_DISTINCT_AMO_TYPES(SHOAL_SHMEM_ON_SOME, _test_some)
// Collectives over teams.
SHOAL_SHMEM_DISTINCT_RMA_TYPES(SHOAL_SHMEM_ON_TEAM, _alltoall)
SHOAL_SHMEM_DISTINCT_RMA_TYPES(SHOAL_SHMEM_ON_TEAM, _alltoalls)
SHOAL_SHMEM_DISTINCT_RMA_TYPES(SHOAL_SHMEM_ON_TEAM, _broadcast)
SHOAL_SHMEM_DISTINCT_RMA_TYPES(SHOAL_SHMEM_ON_TEAM, _collect)
SHOAL_SHMEM_DISTINCT_RMA_TYPES(SHOAL_SHMEM_ON_TEAM, _fcollect)
SHOAL_SHMEM_DISTINCT_BITWISE_REDUCE_TYPES(SHOAL_SHMEM_ON_TEAM, _and_reduce)
SHOAL_SHMEM_DISTINCT_BITWISE_REDUCE_TYPES(SHOAL_SHMEM_ON_TEAM, _or_reduce)
SHOAL_SHMEM_DISTINCT_BITWISE_REDUCE_TYPES(SHOAL_SHMEM_ON_TEAM, _xor_reduce)
SHOAL_SHMEM_DISTINCT_ORDERED_REDUCE_TYPES(SHOAL_SHMEM_ON_TEAM, _max_reduce)
SHOAL_SHMEM_DISTINCT_ORDERED_REDUCE_TYPES(SHOAL_SHMEM_ON_TEAM, _min_reduce)
SHOAL_SHMEM_DISTINCT_ARITHMETIC_REDUCE_TYPES(SHOAL_SHMEM_ON_TEAM, _sum_reduce)
SHOAL_SHMEM_DISTINCT_ARITHMETIC_REDUCE_TYPES(SHOAL_SHMEM_ON_TEAM, _prod_reduce)
SHOAL_SHMEM_DISTINCT_ARITHMETIC_REDUCE_TYPES(SHOAL_SHMEM_ON_TEAM, _sum_inscan)
SHOAL_SHMEM_DISTINCT_ARITHMETIC_REDUCE_TYPES(SHOAL_SHMEM_ON_TEAM, _sum_exscan)

// Over a team; the form over an active set is deprecated.
inline int shmem_sync(shmem_team_t team) {
  return shmem_team_sync(team);
}

#undef SHOAL_SHMEM_ON_POINTER
#undef SHOAL_SHMEM_ON_CTX
#undef SHOAL_SHMEM_ON_CTX_CONST
#undef SHOAL_SHMEM_ON_POINTER_CONST
#undef SHOAL_SHMEM_ON_TEAM
#undef SHOAL_SHMEM_ON_SET
#undef SHOAL_SHMEM_ON_SOME

#endif
