// SPDX-License-Identifier: Apache-2.0
// A program that includes no header but those of NVSHMEM, and uses what these include.
#include <nvshmem.h>
#include <nvshmem_tensor.h>
#include <nvshmemx.h>

#include <device_host/nvshmem_types.h>
#include <host/nvshmem_api.h>
#include <host/nvshmemx_api.h>
#include <device_host/nvshmem_common.cuh>
#include <non_abi/device/threadgroup/nvshmemi_common_device_defines.cuh>

__global__ void total(int* sums) {
  const cooperative_groups::thread_block block = cooperative_groups::this_thread_block();
  assert(nvshmemi_threadgroup_size<NVSHMEMI_THREADGROUP_BLOCK>() ==
         static_cast<int>(block.num_threads()));
  sums[0] += nvshmemi_thread_id_in_threadgroup<nvshmemi_threadgroup_warp>();
  sums[1] += nvshmemi_thread_id_in_threadgroup<NVSHMEMI_THREADGROUP_WARPGROUP>();
  sums[2] += nvshmemi_thread_id_in_threadgroup<NVSHMEMI_THREADGROUP_THREAD>();
  nvshmemi_threadgroup_sync<nvshmemi_threadgroup_block>();
}

int report(CUresult result, const char* name) {
  if (result == CUDA_SUCCESS && strcmp(name, "") != 0) return EXIT_SUCCESS;
  NVSHMEMI_ERROR_PRINT("%s: status %d\n", name, static_cast<int>(result));
  printf("no kernel\n");
  return nvshmemx_init_status() == NVSHMEM_STATUS_INVALID ? EXIT_FAILURE : EXIT_SUCCESS;
}
