// SPDX-License-Identifier: Apache-2.0
// start.cuh: what all kernels of collectives do at their start and at their launch.
#pragma once

#include <cuda_runtime.h>

#include "collective/cuda/shape.hpp"
#include "collective/launch.hpp"

namespace shoal::collective::kernels {

/// Waits for the kernel before, and lets the one after be set up. Once all blocks run, that one
/// cannot keep them from running.
__device__ inline void begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

inline const char* text_of(cudaError_t result) {
  return result == cudaSuccess ? nullptr : cudaGetErrorString(result);
}

template <typename... Parameters>
const char* start(const Launch& launch, const LaunchShape& shape, void (*kernel)(Parameters...),
                  const Parameters&... parameters) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.blocks);
  config.blockDim = dim3(shape.threads);
  config.stream = launch.stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = launch.overlaps ? 1 : 0;
  return text_of(cudaLaunchKernelEx(&config, kernel, parameters...));
}

/// Loads a kernel on the current device.
template <typename... Parameters>
const char* load_kernel(void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes{};
  const cudaError_t result =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
  if (result != cudaSuccess) cudaGetLastError();  // not to be taken for the failure of a launch
  return text_of(result);
}

}  // namespace shoal::collective::kernels
