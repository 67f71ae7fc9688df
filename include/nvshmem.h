// SPDX-License-Identifier: Apache-2.0
// nvshmem.h: an NVSHMEM-compatible interface to Shoal, for the host, CUDA streams and kernels.
//
//   #include <nvshmem.h>
//   #include <nvshmemx.h>
//
//   __global__ void ring(int* box) {
//     nvshmem_int_p(box, nvshmem_my_pe(), (nvshmem_my_pe() + 1) % nvshmem_n_pes());
//   }
//   int main() {
//     nvshmem_init();
//     int* box = (int*)nvshmem_malloc(sizeof(int));
//     ring<<<1, 1>>>(box);
//     nvshmemx_barrier_all_on_stream(0);
//     ...
//   }
//
// Compile with nvcc -std=c++17 or later, with or without -rdc=true, and link with shoal_nvshmem.
// docs/guide/from-nvshmem.md describes the use, docs/reference/nvshmem.md lists every function.
//
// Errors on the host, such as a PE that does not exist, end the program on all PEs with a message
// that names the call, the argument and the allowed range. Errors in kernels are kept, and the next
// call of the host ends the program with them.
#ifndef SHOAL_NVSHMEM_H
#define SHOAL_NVSHMEM_H

#include <nvshmem_host.h>

// Programs use what the header of NVSHMEM includes, without including it themselves.
#ifndef SHOAL_NVSHMEM_DEVICE_LIBRARY
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __has_include
#if __has_include(<cuda.h>)
#include <cuda.h>
#endif
#endif
#ifdef __CUDACC__
#include <cooperative_groups.h>
#endif
#endif

#if defined(__CUDACC__) && !defined(NVSHMEM_HOSTLIB_ONLY)
#include <shoal/nvshmem/device/functions.cuh>
#endif

#endif
