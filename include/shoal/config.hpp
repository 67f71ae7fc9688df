// SPDX-License-Identifier: Apache-2.0
// shoal/config.hpp: what every public C++ header needs from the compiler.
#pragma once

// SHOAL_KERNELS_ONLY: nvshmem.h includes parts for kernels alone, for which C++17 suffices.
#if defined(__cplusplus) && __cplusplus < 202002L && !defined(SHOAL_KERNELS_ONLY)
#error "Shoal needs C++20: compile with -std=c++20 (nvcc: -std=c++20), or use shoal/shoal.h from C"
#endif

/// Marks functions that are compiled for the CPU and, by a CUDA compiler, for the GPU as well.
#ifdef __CUDACC__
#define SHOAL_HOST_DEVICE __host__ __device__
#else
#define SHOAL_HOST_DEVICE
#endif

namespace shoal::detail {
struct Access;  // shoal/detail/access.hpp
}
