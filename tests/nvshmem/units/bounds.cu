// SPDX-License-Identifier: Apache-2.0
// A kernel for each function, compiled for blocks of 1024 threads (BOUNDS empty: without bounds).
// Types whose functions are the same code, and the names of one function, have one kernel.
#include <nvshmem.h>
#include <nvshmemx.h>

#ifndef BOUNDS
#define BOUNDS __launch_bounds__(1024)
#endif

struct Values {
  void* bytes;
  int8_t* i8;
  short* i16;
  int* i32;
  int64_t* i64;
  __half* half;
  float* f32;
  double* f64;
  uint64_t* flag;
  size_t* indices;
  const int* status;
  size_t n;
  int pe, op, team;
};

#define KERNEL(NAME, ...)                 \
  __global__ void BOUNDS NAME(Values a) { \
    __VA_ARGS__;                          \
  }
#define SCOPES(NAME, ...)                                     \
  KERNEL(NAME##_by_thread, nvshmem_##NAME(__VA_ARGS__))       \
  KERNEL(NAME##_by_warp, nvshmemx_##NAME##_warp(__VA_ARGS__)) \
  KERNEL(NAME##_by_block, nvshmemx_##NAME##_block(__VA_ARGS__))

SCOPES(putmem, a.bytes, a.f64, a.n, a.pe)
SCOPES(getmem, a.bytes, a.f64, a.n, a.pe)
SCOPES(float_put_nbi, a.f32, a.f32 + 7, a.n, a.pe)
SCOPES(put128, a.f32, a.f64, a.n, a.pe)
SCOPES(putmem_signal, a.bytes, a.f64, a.n, a.flag, 1, a.op, a.pe)
SCOPES(double_put_signal_nbi, a.f64, a.f64 + 3, a.n, a.flag, 1, a.op, a.pe)
SCOPES(float_iput, a.f32, a.f32 + 7, 3, 5, a.n, a.pe)
SCOPES(iput128, a.bytes, a.f64, 3, 5, a.n, a.pe)
SCOPES(iget8, a.bytes, a.f64, 3, 5, a.n, a.pe)
SCOPES(iget128, a.bytes, a.f64, 3, 5, a.n, a.pe)
KERNEL(p8, nvshmem_int8_p(a.i8, 5, a.pe))
KERNEL(p16, nvshmem_half_p(a.half, a.half[1], a.pe))
KERNEL(p32, nvshmem_int_p(a.i32, 5, a.pe))
KERNEL(p64, nvshmem_double_p(a.f64, 5, a.pe))
KERNEL(g8, a.i8[0] = nvshmem_int8_g(a.i8, a.pe))
KERNEL(g16, a.half[0] = nvshmem_half_g(a.half, a.pe))
KERNEL(g32, a.i32[0] = nvshmem_int_g(a.i32, a.pe))
KERNEL(g64, a.f64[0] = nvshmem_double_g(a.f64, a.pe))
KERNEL(ptr, *static_cast<void**>(a.bytes) = nvshmem_ptr(a.bytes, a.pe))

KERNEL(atomic_fetch, a.i32[1] = nvshmem_int_atomic_fetch(a.i32, a.pe))
KERNEL(atomic_set, nvshmem_float_atomic_set(a.f32, 1, a.pe))
KERNEL(atomic_swap, a.f64[1] = nvshmem_double_atomic_swap(a.f64, 1, a.pe))
KERNEL(compare_swap32, a.i32[1] = nvshmem_int_atomic_compare_swap(a.i32, 1, 2, a.pe))
KERNEL(compare_swap64, a.flag[1] = nvshmem_uint64_atomic_compare_swap(a.flag, 1, 2, a.pe))
KERNEL(fetch_add, a.i32[1] = nvshmem_int_atomic_fetch_add(a.i32, 1, a.pe))
KERNEL(inc, nvshmem_size_atomic_inc(a.indices, a.pe))
KERNEL(fetch_and, a.flag[1] = nvshmem_uint64_atomic_fetch_and(a.flag, 4, a.pe))
KERNEL(or_by_thread, nvshmem_uint64_atomic_or(a.flag, 4, a.pe))
KERNEL(xor_by_thread, nvshmem_uint64_atomic_xor(a.flag, 4, a.pe))

KERNEL(signal_op, nvshmemx_signal_op(a.flag, 1, a.op, a.pe))
KERNEL(signal_fetch, a.flag[1] = nvshmem_signal_fetch(a.flag))
KERNEL(signal_wait_until, nvshmem_signal_wait_until(a.flag, a.op, 1))
KERNEL(wait_until, nvshmem_short_wait_until(a.i16, a.op, 1))
KERNEL(wait_until_all, nvshmem_int_wait_until_all(a.i32, a.n, a.status, a.op, 1))
KERNEL(wait_until_any, *a.indices = nvshmem_uint64_wait_until_any(a.flag, a.n, a.status, a.op, 1))
KERNEL(wait_until_some,
       nvshmem_int_wait_until_some_vector(a.i32, a.n, a.indices, a.status, a.op, a.i32 + 8))
KERNEL(test, a.i32[0] = nvshmem_int_test(a.i32, a.op, 1))
KERNEL(test_all, a.i32[0] = nvshmem_short_test_all(a.i16, a.n, a.status, a.op, 1))
KERNEL(test_any, *a.indices = nvshmem_int_test_any(a.i32, a.n, a.status, a.op, 1))
KERNEL(test_some, *a.indices = nvshmem_uint64_test_some_vector(a.flag, a.n, a.indices, a.status,
                                                               a.op, a.flag + 8))

KERNEL(fence, nvshmem_fence())
KERNEL(quiet, nvshmem_quiet())
SCOPES(barrier, a.team)
SCOPES(team_sync, a.team)
SCOPES(barrier_all)
KERNEL(barrier_all_by_warpgroup, nvshmemx_barrier_all_warpgroup())
KERNEL(barrier_by_warpgroup, nvshmemx_barrier_warpgroup(a.team))
KERNEL(translate, a.i32[0] = nvshmem_team_translate_pe(a.team, a.pe, 0))

SCOPES(broadcastmem, a.team, a.bytes, a.f64, a.n, 0)
SCOPES(double_broadcast, a.team, a.f64, a.f64, a.n, 0)
SCOPES(fcollectmem, a.team, a.bytes, a.f64, a.n)
SCOPES(double_fcollect, a.team, a.f64, a.f64, a.n)
SCOPES(alltoallmem, a.team, a.bytes, a.f64, a.n)
SCOPES(half_alltoall, a.team, a.half, a.half, a.n)
SCOPES(float_sum_reduce, a.team, a.f32, a.f32, a.n)
SCOPES(half_sum_reduce, a.team, a.half, a.half, a.n)
SCOPES(int64_max_reduce, a.team, a.i64, a.i64, a.n)
SCOPES(int8_prod_reducescatter, a.team, a.i8, a.i8, a.n)
SCOPES(short_max_reducescatter, a.team, a.i16, a.i16, a.n)
SCOPES(double_min_reducescatter, a.team, a.f64, a.f64, a.n)
KERNEL(maxloc, nvshmemx_double2_maxloc_reduce_block(a.team, reinterpret_cast<double2*>(a.f64),
                                                    reinterpret_cast<double2*>(a.f64), a.n))
