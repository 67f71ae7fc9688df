// SPDX-License-Identifier: Apache-2.0
// types.h: the types that typed functions of nvshmem.h exist for, as tables X(TYPE, NAME). Atomics
// have the tables of OpenSHMEM (shoal/shmem/types.h).
#ifndef SHOAL_NVSHMEM_TYPES_H
#define SHOAL_NVSHMEM_TYPES_H

#include <shoal/shmem/types.h>

// half and bfloat16 are types of CUDA for C++.
#if defined(__cplusplus) && defined(__has_include)
#if __has_include(<cuda_fp16.h>) && __has_include(<cuda_bf16.h>)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define SHOAL_NVSHMEM_HALF_TYPES(X) X(__half, half) X(__nv_bfloat16, bfloat16)
#endif
#endif
#ifndef SHOAL_NVSHMEM_HALF_TYPES
#define SHOAL_NVSHMEM_HALF_TYPES(X)
#endif

// RMA and collectives that move data: those of OpenSHMEM without long double.
#define SHOAL_NVSHMEM_RMA_TYPES(X) \
  SHOAL_NVSHMEM_HALF_TYPES(X)      \
  X(float, float) X(double, double) SHOAL_SHMEM_INTEGER_TYPES(X)

// Waits and tests.
#define SHOAL_NVSHMEM_WAIT_TYPES(X) \
  X(short, short) X(unsigned short, ushort) SHOAL_SHMEM_AMO_TYPES(X)

#endif
