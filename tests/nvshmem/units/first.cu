// SPDX-License-Identifier: Apache-2.0
// A translation unit with kernels that call functions of each chapter.
#include <nvshmem.h>
#include <nvshmemx.h>

#include "units.h"

__global__ void first_unit(int* box, float* values, uint64_t* flag, __half* half, size_t* indices,
                           const int* status) {
  const int me = nvshmem_my_pe(), next = (me + 1) % nvshmem_n_pes();
  nvshmem_int_p(box, me, next);
  nvshmemx_float_put_block(values, values + 16, 16, next);
  nvshmemx_getmem_nbi_warp(values, values + 16, 64, next);
  nvshmem_half_p(half, half[1], next);
  nvshmem_iput128(values, values + 64, 1, 2, 4, next);
  nvshmem_float_atomic_swap(values, 1.0f, next);
  nvshmem_uint64_atomic_fetch_xor(flag, 1, next);
  nvshmemx_putmem_signal_nbi_block(box, box + 4, 16, flag, 1, NVSHMEM_SIGNAL_ADD, next);
  nvshmemx_signal_op(flag, 1, NVSHMEM_SIGNAL_SET, next);
  nvshmem_signal_wait_until(flag, NVSHMEM_CMP_GE, 1);
  nvshmem_int_wait_until_some(box, 4, indices, status, NVSHMEM_CMP_NE, 0);
  nvshmem_ushort_test_all_vector(reinterpret_cast<unsigned short*>(box), 2, nullptr, NVSHMEM_CMP_EQ,
                                 reinterpret_cast<unsigned short*>(box + 2));
  nvshmem_fence();
  nvshmem_quiet();
  nvshmemx_barrier_block(NVSHMEM_TEAM_WORLD);
  nvshmemx_sync_all_warp();
  nvshmemx_float_sum_reduce_block(NVSHMEM_TEAM_WORLD, values, values + 64, 64);
  nvshmem_half_max_reducescatter(NVSHMEM_TEAM_WORLD, half, half + 8, 2);
  nvshmemx_uint64_xor_reduce_warp(NVSHMEM_TEAM_WORLD, flag, flag + 1, 1);
  nvshmemx_broadcastmem_block(NVSHMEM_TEAM_WORLD, box, box, 64, 0);
  nvshmem_int_fcollect(NVSHMEM_TEAM_WORLD, box, box + 64, 4);
  nvshmemx_longlong_alltoall_warp(NVSHMEM_TEAM_WORLD, reinterpret_cast<long long*>(flag),
                                  reinterpret_cast<long long*>(flag) + 8, 2);
  auto* const there = static_cast<int*>(nvshmem_ptr(box, next));
  if (there != nullptr)
    *there = nvshmem_team_translate_pe(NVSHMEMX_TEAM_NODE, 0, NVSHMEM_TEAM_WORLD);
}
