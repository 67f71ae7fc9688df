// SPDX-License-Identifier: Apache-2.0
// nvshmemi_common_device_defines.cuh: scopes by the names that programs use: the index of a thread
// in its scope, their number, and a barrier among them.
#pragma once

#include <nvshmem.h>

typedef enum {
  nvshmemi_threadgroup_thread = 0,
  nvshmemi_threadgroup_warp = 1,
  nvshmemi_threadgroup_block = 2,
  nvshmemi_threadgroup_warpgroup = 3,
  NVSHMEMI_THREADGROUP_THREAD = nvshmemi_threadgroup_thread,
  NVSHMEMI_THREADGROUP_WARP = nvshmemi_threadgroup_warp,
  NVSHMEMI_THREADGROUP_BLOCK = nvshmemi_threadgroup_block,
  NVSHMEMI_THREADGROUP_WARPGROUP = nvshmemi_threadgroup_warpgroup
} threadgroup_t;

#if defined(__CUDACC__) && !defined(NVSHMEM_HOSTLIB_ONLY)
namespace shoal::nvshmem {

template <threadgroup_t scope>
__device__ auto scope_of() {
  if constexpr (scope == nvshmemi_threadgroup_warp)
    return device::Warp{};
  else if constexpr (scope == nvshmemi_threadgroup_block)
    return device::Block{};
  else if constexpr (scope == nvshmemi_threadgroup_warpgroup)
    return device::Warpgroup{};
  else
    return device::Thread{};
}

}  // namespace shoal::nvshmem

template <threadgroup_t scope>
__device__ int nvshmemi_thread_id_in_threadgroup() {
  return static_cast<int>(shoal::nvshmem::scope_of<scope>().rank());
}
template <threadgroup_t scope>
__device__ int nvshmemi_threadgroup_size() {
  return static_cast<int>(shoal::nvshmem::scope_of<scope>().size());
}
template <threadgroup_t scope>
__device__ void nvshmemi_threadgroup_sync() {
  shoal::nvshmem::scope_of<scope>().sync();
}
#endif
