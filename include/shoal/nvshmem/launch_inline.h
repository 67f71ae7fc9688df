// SPDX-License-Identifier: Apache-2.0
// launch_inline.h: the definitions of collective launch.
#ifndef SHOAL_NVSHMEM_LAUNCH_INLINE_H
#define SHOAL_NVSHMEM_LAUNCH_INLINE_H

#ifndef SHOAL_NVSHMEM_HD
#error "part of nvshmem.h: include <nvshmem.h>"
#endif

/// Stores the number of blocks that fit at once on this PE's share of its GPU. Returns 0, or
/// NVSHMEMX_ERROR_INVALID_VALUE where not one fits or CUDA refuses the kernel.
static inline int nvshmemx_collective_launch_query_gridsize(const void* func, dim3 blockDims,
                                                            void** args, size_t sharedMem,
                                                            int* gridsize) {
  (void)args;
  int device = 0, sharing = 1, per_multiprocessor = 0, multiprocessors = 0;
  cudaStream_t priority = NULL;
  *gridsize = 0;
  shoal_nvshmem_launch_context(&device, &sharing, &priority);
  const int threads = (int)(blockDims.x * blockDims.y * blockDims.z);
  if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, func, threads,
                                                    sharedMem) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) !=
          cudaSuccess)
    return NVSHMEMX_ERROR_INVALID_VALUE;
  *gridsize = per_multiprocessor * multiprocessors / sharing;
  return *gridsize > 0 ? NVSHMEMX_SUCCESS : NVSHMEMX_ERROR_INVALID_VALUE;
}

/// Launches the kernel after the work queued on `stream` so far and before later work there, on
/// this PE's stream of the highest priority. A grid of zeros: as many blocks as fit. Returns 0, or
/// NVSHMEMX_ERROR_INVALID_VALUE for a grid that does not fit or is zero in part, and
/// NVSHMEMX_ERROR_COLLECTIVE_LAUNCH_FAILED where CUDA does not start it.
static inline int nvshmemx_collective_launch(const void* func, dim3 gridDims, dim3 blockDims,
                                             void** args, size_t sharedMem, cudaStream_t stream) {
  int most = 0, device = 0, sharing = 1;
  cudaStream_t priority = NULL;
  const int found =
      nvshmemx_collective_launch_query_gridsize(func, blockDims, args, sharedMem, &most);
  if (found != NVSHMEMX_SUCCESS) return found;
  if (gridDims.x == 0 && gridDims.y == 0 && gridDims.z == 0) gridDims = dim3((unsigned)most, 1, 1);
  const size_t blocks = (size_t)gridDims.x * gridDims.y * gridDims.z;
  if (blocks == 0 || blocks > (size_t)most) return NVSHMEMX_ERROR_INVALID_VALUE;
  shoal_nvshmem_launch_context(&device, &sharing, &priority);
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess || cudaSetDevice(device) != cudaSuccess)
    return NVSHMEMX_ERROR_COLLECTIVE_LAUNCH_FAILED;
  shoal_nvshmem_order(stream, priority);
  const cudaError_t launched =
      cudaLaunchCooperativeKernel(func, gridDims, blockDims, args, sharedMem, priority);
  shoal_nvshmem_order(priority, stream);
  (void)cudaSetDevice(before);
  return launched == cudaSuccess ? NVSHMEMX_SUCCESS : NVSHMEMX_ERROR_COLLECTIVE_LAUNCH_FAILED;
}

#endif
