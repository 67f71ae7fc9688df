// SPDX-License-Identifier: Apache-2.0
// start.cuh: what all kernels of collectives do at their start and at their launch.
#pragma once

#include "collective/cuda/shape.hpp"
#include "collective/launch.hpp"
#include "device/cuda/start.cuh"

namespace shoal::collective::kernels {

/// Waits for the kernel before, and lets the one after be set up. Once all blocks run, that one
/// cannot keep them from running.
__device__ inline void begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

using detail::kernels::load_kernels;

template <typename... Parameters>
const char* start(const Launch& launch, const LaunchShape& shape, void (*kernel)(Parameters...),
                  const Parameters&... parameters) {
  return detail::kernels::start(launch.stream, shape.blocks, shape.threads, launch.overlaps, kernel,
                                parameters...);
}

}  // namespace shoal::collective::kernels
