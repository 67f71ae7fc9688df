// SPDX-License-Identifier: Apache-2.0
// nvshmem_host.h: the functions of nvshmem.h and nvshmemx.h for the host and streams, without
// device code.
#ifndef SHOAL_NVSHMEM_HOST_H
#define SHOAL_NVSHMEM_HOST_H

#include <shoal/nvshmem/constants.h>
#include <shoal/nvshmem/types.h>

// Collective launch needs the CUDA runtime of the program.
#if defined(__cplusplus) && defined(__has_include)
#if __has_include(<cuda_runtime.h>)
#include <cuda_runtime.h>
#define SHOAL_NVSHMEM_LAUNCH
#endif
#endif

/// Marks functions that kernels have too (shoal/nvshmem/device/).
#ifdef __CUDACC__
#define SHOAL_NVSHMEM_HD __host__ __device__
#else
#define SHOAL_NVSHMEM_HD
#endif

/// A function of the host and kernels, and its form on a stream.
#define SHOAL_NVSHMEM_PAIR(RESULT, NAME, ...)          \
  SHOAL_NVSHMEM_HD RESULT nvshmem_##NAME(__VA_ARGS__); \
  RESULT nvshmemx_##NAME##_on_stream(__VA_ARGS__, cudaStream_t stream);

#ifdef __cplusplus
extern "C" {
#endif

#include <shoal/nvshmem/atomics.h>
#include <shoal/nvshmem/collectives.h>
#include <shoal/nvshmem/launch.h>
#include <shoal/nvshmem/library.h>
#include <shoal/nvshmem/memory.h>
#include <shoal/nvshmem/order.h>
#include <shoal/nvshmem/rma.h>
#include <shoal/nvshmem/signals.h>
#include <shoal/nvshmem/teams.h>

#undef SHOAL_NVSHMEM_PAIR

#ifdef __cplusplus
}
#endif

#endif
