// SPDX-License-Identifier: Apache-2.0
// generics.h: the generic forms for C11. The type of the first pointer selects the routine; a
// context or a team may come before it.
#ifndef SHOAL_SHMEM_GENERICS_H
#define SHOAL_SHMEM_GENERICS_H

#ifndef SHOAL_SHMEM_H
#error "part of shmem.h: include <shmem.h>"
#endif

// A type without a routine selects this one: the call then has too many arguments.
void shoal_shmem_no_routine_for_this_type(void);

#define SHOAL_SHMEM_FIRST(...) SHOAL_SHMEM_FIRST_OF(__VA_ARGS__, 0)
#define SHOAL_SHMEM_FIRST_OF(first, ...) first
#define SHOAL_SHMEM_SECOND(...) SHOAL_SHMEM_SECOND_OF(__VA_ARGS__, 0, 0)
#define SHOAL_SHMEM_SECOND_OF(first, second, ...) second

#define SHOAL_SHMEM_ROW(TYPE, NAME, SUFFIX) \
  TYPE* : shmem_##NAME##SUFFIX, const TYPE* : shmem_##NAME##SUFFIX,
#define SHOAL_SHMEM_CTX_ROW(TYPE, NAME, SUFFIX) \
  TYPE* : shmem_ctx_##NAME##SUFFIX, const TYPE* : shmem_ctx_##NAME##SUFFIX,

#define SHOAL_SHMEM_SELECT(TYPES, SUFFIX, POINTER) \
  _Generic((POINTER), TYPES(SHOAL_SHMEM_ROW, SUFFIX) default: shoal_shmem_no_routine_for_this_type)
#define SHOAL_SHMEM_SELECT_CTX(TYPES, SUFFIX, POINTER) \
  _Generic((POINTER),                                  \
      TYPES(SHOAL_SHMEM_CTX_ROW, SUFFIX) default: shoal_shmem_no_routine_for_this_type)

// (pointer, ...), also with a context before it.
#define SHOAL_SHMEM_ON_CTX(TYPES, SUFFIX, ...)                            \
  _Generic((SHOAL_SHMEM_FIRST(__VA_ARGS__)),                              \
      TYPES(SHOAL_SHMEM_ROW, SUFFIX) shmem_ctx_t: SHOAL_SHMEM_SELECT_CTX( \
               TYPES, SUFFIX, SHOAL_SHMEM_SECOND(__VA_ARGS__)))(__VA_ARGS__)
// (pointer, ...)
#define SHOAL_SHMEM_ON_POINTER(TYPES, SUFFIX, ...) \
  SHOAL_SHMEM_SELECT(TYPES, SUFFIX, SHOAL_SHMEM_FIRST(__VA_ARGS__))(__VA_ARGS__)
// (team, pointer, ...)
#define SHOAL_SHMEM_ON_TEAM(TYPES, SUFFIX, ...) \
  SHOAL_SHMEM_SELECT(TYPES, SUFFIX, SHOAL_SHMEM_SECOND(__VA_ARGS__))(__VA_ARGS__)

// Expand to one branch for each type that has the routine. SUFFIX: the rest of its name after the
// type.
#define SHOAL_SHMEM_CTX_RMA(SUFFIX, ...) \
  SHOAL_SHMEM_ON_CTX(SHOAL_SHMEM_DISTINCT_RMA_TYPES, SUFFIX, __VA_ARGS__)
#define SHOAL_SHMEM_CTX_AMO(SUFFIX, ...) \
  SHOAL_SHMEM_ON_CTX(SHOAL_SHMEM_DISTINCT_AMO_TYPES, SUFFIX, __VA_ARGS__)
#define SHOAL_SHMEM_CTX_EXTENDED_AMO(SUFFIX, ...) \
  SHOAL_SHMEM_ON_CTX(SHOAL_SHMEM_DISTINCT_EXTENDED_AMO_TYPES, SUFFIX, __VA_ARGS__)
#define SHOAL_SHMEM_CTX_BITWISE_AMO(SUFFIX, ...) \
  SHOAL_SHMEM_ON_CTX(SHOAL_SHMEM_DISTINCT_BITWISE_AMO_TYPES, SUFFIX, __VA_ARGS__)
#define SHOAL_SHMEM_POINTER_AMO(SUFFIX, ...) \
  SHOAL_SHMEM_ON_POINTER(SHOAL_SHMEM_DISTINCT_AMO_TYPES, SUFFIX, __VA_ARGS__)
#define SHOAL_SHMEM_POINTER_EXTENDED_AMO(SUFFIX, ...) \
  SHOAL_SHMEM_ON_POINTER(SHOAL_SHMEM_DISTINCT_EXTENDED_AMO_TYPES, SUFFIX, __VA_ARGS__)
#define SHOAL_SHMEM_POINTER_WAIT(SUFFIX, ...) \
  SHOAL_SHMEM_ON_POINTER(SHOAL_SHMEM_DISTINCT_WAIT_TYPES, SUFFIX, __VA_ARGS__)
#define SHOAL_SHMEM_TEAM_RMA(SUFFIX, ...) \
  SHOAL_SHMEM_ON_TEAM(SHOAL_SHMEM_DISTINCT_RMA_TYPES, SUFFIX, __VA_ARGS__)
#define SHOAL_SHMEM_TEAM_BITWISE(SUFFIX, ...) \
  SHOAL_SHMEM_ON_TEAM(SHOAL_SHMEM_DISTINCT_BITWISE_REDUCE_TYPES, SUFFIX, __VA_ARGS__)
#define SHOAL_SHMEM_TEAM_ORDERED(SUFFIX, ...) \
  SHOAL_SHMEM_ON_TEAM(SHOAL_SHMEM_DISTINCT_ORDERED_REDUCE_TYPES, SUFFIX, __VA_ARGS__)
#define SHOAL_SHMEM_TEAM_ARITHMETIC(SUFFIX, ...) \
  SHOAL_SHMEM_ON_TEAM(SHOAL_SHMEM_DISTINCT_ARITHMETIC_REDUCE_TYPES, SUFFIX, __VA_ARGS__)

// Put and get.
#define shmem_put(...) SHOAL_SHMEM_CTX_RMA(_put, __VA_ARGS__)
#define shmem_get(...) SHOAL_SHMEM_CTX_RMA(_get, __VA_ARGS__)
#define shmem_put_nbi(...) SHOAL_SHMEM_CTX_RMA(_put_nbi, __VA_ARGS__)
#define shmem_get_nbi(...) SHOAL_SHMEM_CTX_RMA(_get_nbi, __VA_ARGS__)
#define shmem_p(...) SHOAL_SHMEM_CTX_RMA(_p, __VA_ARGS__)
#define shmem_g(...) SHOAL_SHMEM_CTX_RMA(_g, __VA_ARGS__)
#define shmem_iput(...) SHOAL_SHMEM_CTX_RMA(_iput, __VA_ARGS__)
#define shmem_iget(...) SHOAL_SHMEM_CTX_RMA(_iget, __VA_ARGS__)
#define shmem_ibput(...) SHOAL_SHMEM_CTX_RMA(_ibput, __VA_ARGS__)
#define shmem_ibget(...) SHOAL_SHMEM_CTX_RMA(_ibget, __VA_ARGS__)
#define shmem_put_signal(...) SHOAL_SHMEM_CTX_RMA(_put_signal, __VA_ARGS__)
#define shmem_put_signal_nbi(...) SHOAL_SHMEM_CTX_RMA(_put_signal_nbi, __VA_ARGS__)
// Atomics.
#define shmem_atomic_fetch(...) SHOAL_SHMEM_CTX_EXTENDED_AMO(_atomic_fetch, __VA_ARGS__)
#define shmem_atomic_set(...) SHOAL_SHMEM_CTX_EXTENDED_AMO(_atomic_set, __VA_ARGS__)
#define shmem_atomic_swap(...) SHOAL_SHMEM_CTX_EXTENDED_AMO(_atomic_swap, __VA_ARGS__)
#define shmem_atomic_fetch_nbi(...) SHOAL_SHMEM_CTX_EXTENDED_AMO(_atomic_fetch_nbi, __VA_ARGS__)
#define shmem_atomic_swap_nbi(...) SHOAL_SHMEM_CTX_EXTENDED_AMO(_atomic_swap_nbi, __VA_ARGS__)
#define shmem_atomic_compare_swap(...) SHOAL_SHMEM_CTX_AMO(_atomic_compare_swap, __VA_ARGS__)
#define shmem_atomic_compare_swap_nbi(...) \
  SHOAL_SHMEM_CTX_AMO(_atomic_compare_swap_nbi, __VA_ARGS__)
#define shmem_atomic_fetch_inc(...) SHOAL_SHMEM_CTX_AMO(_atomic_fetch_inc, __VA_ARGS__)
#define shmem_atomic_fetch_inc_nbi(...) SHOAL_SHMEM_CTX_AMO(_atomic_fetch_inc_nbi, __VA_ARGS__)
#define shmem_atomic_inc(...) SHOAL_SHMEM_CTX_AMO(_atomic_inc, __VA_ARGS__)
#define shmem_atomic_fetch_add(...) SHOAL_SHMEM_CTX_AMO(_atomic_fetch_add, __VA_ARGS__)
#define shmem_atomic_fetch_add_nbi(...) SHOAL_SHMEM_CTX_AMO(_atomic_fetch_add_nbi, __VA_ARGS__)
#define shmem_atomic_add(...) SHOAL_SHMEM_CTX_AMO(_atomic_add, __VA_ARGS__)
#define shmem_atomic_fetch_and(...) SHOAL_SHMEM_CTX_BITWISE_AMO(_atomic_fetch_and, __VA_ARGS__)
#define shmem_atomic_fetch_and_nbi(...) \
  SHOAL_SHMEM_CTX_BITWISE_AMO(_atomic_fetch_and_nbi, __VA_ARGS__)
#define shmem_atomic_and(...) SHOAL_SHMEM_CTX_BITWISE_AMO(_atomic_and, __VA_ARGS__)
#define shmem_atomic_fetch_or(...) SHOAL_SHMEM_CTX_BITWISE_AMO(_atomic_fetch_or, __VA_ARGS__)
#define shmem_atomic_fetch_or_nbi(...) \
  SHOAL_SHMEM_CTX_BITWISE_AMO(_atomic_fetch_or_nbi, __VA_ARGS__)
#define shmem_atomic_or(...) SHOAL_SHMEM_CTX_BITWISE_AMO(_atomic_or, __VA_ARGS__)
#define shmem_atomic_fetch_xor(...) SHOAL_SHMEM_CTX_BITWISE_AMO(_atomic_fetch_xor, __VA_ARGS__)
#define shmem_atomic_fetch_xor_nbi(...) \
  SHOAL_SHMEM_CTX_BITWISE_AMO(_atomic_fetch_xor_nbi, __VA_ARGS__)
#define shmem_atomic_xor(...) SHOAL_SHMEM_CTX_BITWISE_AMO(_atomic_xor, __VA_ARGS__)
// Deprecated names of atomics.
#define shmem_fetch(...) SHOAL_SHMEM_POINTER_EXTENDED_AMO(_fetch, __VA_ARGS__)
#define shmem_set(...) SHOAL_SHMEM_POINTER_EXTENDED_AMO(_set, __VA_ARGS__)
#define shmem_swap(...) SHOAL_SHMEM_POINTER_EXTENDED_AMO(_swap, __VA_ARGS__)
#define shmem_cswap(...) SHOAL_SHMEM_POINTER_AMO(_cswap, __VA_ARGS__)
#define shmem_finc(...) SHOAL_SHMEM_POINTER_AMO(_finc, __VA_ARGS__)
#define shmem_inc(...) SHOAL_SHMEM_POINTER_AMO(_inc, __VA_ARGS__)
#define shmem_fadd(...) SHOAL_SHMEM_POINTER_AMO(_fadd, __VA_ARGS__)
#define shmem_add(...) SHOAL_SHMEM_POINTER_AMO(_add, __VA_ARGS__)
// Waits and tests.
#define shmem_wait_until(...) SHOAL_SHMEM_POINTER_WAIT(_wait_until, __VA_ARGS__)
#define shmem_test(...) SHOAL_SHMEM_POINTER_WAIT(_test, __VA_ARGS__)
#define shmem_wait_until_all(...) SHOAL_SHMEM_POINTER_AMO(_wait_until_all, __VA_ARGS__)
#define shmem_wait_until_all_vector(...) \
  SHOAL_SHMEM_POINTER_AMO(_wait_until_all_vector, __VA_ARGS__)
#define shmem_wait_until_any(...) SHOAL_SHMEM_POINTER_AMO(_wait_until_any, __VA_ARGS__)
#define shmem_wait_until_any_vector(...) \
  SHOAL_SHMEM_POINTER_AMO(_wait_until_any_vector, __VA_ARGS__)
#define shmem_wait_until_some(...) SHOAL_SHMEM_POINTER_AMO(_wait_until_some, __VA_ARGS__)
#define shmem_wait_until_some_vector(...) \
  SHOAL_SHMEM_POINTER_AMO(_wait_until_some_vector, __VA_ARGS__)
#define shmem_test_all(...) SHOAL_SHMEM_POINTER_AMO(_test_all, __VA_ARGS__)
#define shmem_test_all_vector(...) SHOAL_SHMEM_POINTER_AMO(_test_all_vector, __VA_ARGS__)
#define shmem_test_any(...) SHOAL_SHMEM_POINTER_AMO(_test_any, __VA_ARGS__)
#define shmem_test_any_vector(...) SHOAL_SHMEM_POINTER_AMO(_test_any_vector, __VA_ARGS__)
#define shmem_test_some(...) SHOAL_SHMEM_POINTER_AMO(_test_some, __VA_ARGS__)
#define shmem_test_some_vector(...) SHOAL_SHMEM_POINTER_AMO(_test_some_vector, __VA_ARGS__)
// Collectives over teams.
#define shmem_alltoall(...) SHOAL_SHMEM_TEAM_RMA(_alltoall, __VA_ARGS__)
#define shmem_alltoalls(...) SHOAL_SHMEM_TEAM_RMA(_alltoalls, __VA_ARGS__)
#define shmem_broadcast(...) SHOAL_SHMEM_TEAM_RMA(_broadcast, __VA_ARGS__)
#define shmem_collect(...) SHOAL_SHMEM_TEAM_RMA(_collect, __VA_ARGS__)
#define shmem_fcollect(...) SHOAL_SHMEM_TEAM_RMA(_fcollect, __VA_ARGS__)
#define shmem_and_reduce(...) SHOAL_SHMEM_TEAM_BITWISE(_and_reduce, __VA_ARGS__)
#define shmem_or_reduce(...) SHOAL_SHMEM_TEAM_BITWISE(_or_reduce, __VA_ARGS__)
#define shmem_xor_reduce(...) SHOAL_SHMEM_TEAM_BITWISE(_xor_reduce, __VA_ARGS__)
#define shmem_max_reduce(...) SHOAL_SHMEM_TEAM_ORDERED(_max_reduce, __VA_ARGS__)
#define shmem_min_reduce(...) SHOAL_SHMEM_TEAM_ORDERED(_min_reduce, __VA_ARGS__)
#define shmem_sum_reduce(...) SHOAL_SHMEM_TEAM_ARITHMETIC(_sum_reduce, __VA_ARGS__)
#define shmem_prod_reduce(...) SHOAL_SHMEM_TEAM_ARITHMETIC(_prod_reduce, __VA_ARGS__)
#define shmem_sum_inscan(...) SHOAL_SHMEM_TEAM_ARITHMETIC(_sum_inscan, __VA_ARGS__)
#define shmem_sum_exscan(...) SHOAL_SHMEM_TEAM_ARITHMETIC(_sum_exscan, __VA_ARGS__)
// Over a team, or over an active set (deprecated).
#define shmem_sync(...)                                                                           \
  _Generic((SHOAL_SHMEM_FIRST(__VA_ARGS__)), shmem_team_t: shmem_team_sync, default: shmem_sync)( \
      __VA_ARGS__)

#endif
