// SPDX-License-Identifier: Apache-2.0
// start.cuh: loading and launching kernels on the current device. Functions return nullptr, or
// CUDA's reason where a kernel could not be loaded or did not start.
#pragma once

#include <cuda_runtime.h>

#include "shoal/device/host.hpp"

namespace shoal::detail::kernels {

inline const char* text_of(cudaError_t result) {
  return result == cudaSuccess ? nullptr : cudaGetErrorString(result);
}
/// Error text of the previous launch.
inline const char* started() {
  return text_of(cudaGetLastError());
}

/// A kernel that is loaded at its first launch waits for running kernels (CUDA programming guide,
/// "Lazy Loading").
template <typename... Kernels>
const char* load_kernels(Kernels*... kernels) {
  for (const void* const kernel : {reinterpret_cast<const void*>(kernels)...}) {
    cudaFuncAttributes attributes{};
    if (const char* const failure = text_of(cudaFuncGetAttributes(&attributes, kernel))) {
      cudaGetLastError();  // what failed here is not to be taken for the failure of a launch
      return failure;
    }
  }
  return nullptr;
}

/// `overlaps`: sm_90 and no other PE on this GPU: the kernel may be set up while the one before it
/// ends.
template <typename... Parameters>
const char* start(cuda::Stream stream, unsigned blocks, unsigned threads, bool overlaps,
                  void (*kernel)(Parameters...), const Parameters&... parameters) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = overlaps ? 1 : 0;
  return text_of(cudaLaunchKernelEx(&config, kernel, parameters...));
}

}  // namespace shoal::detail::kernels
