// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <map>
#include <mutex>

#include "memory/cuda/code.hpp"

namespace shoal::memory::cuda {
namespace {

#ifdef __CUDA_ARCH__
#define SHOAL_CODE_ARCHITECTURE (__CUDA_ARCH__ / 10)
#else
#define SHOAL_CODE_ARCHITECTURE 1
#endif

/// Its launch bound is the architecture, which the host can read. It is never launched.
__global__ void __launch_bounds__(SHOAL_CODE_ARCHITECTURE) code_kernel() {}

int read_architecture() {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, code_kernel) == cudaSuccess)
    return attributes.maxThreadsPerBlock;
  (void)cudaGetLastError();  // not to be taken for the failure of a launch
  return 0;
}

}  // namespace

int code_architecture() {
  static std::mutex mutex;
  static auto* const known = new std::map<int, int>;  // by GPU; outlives static objects
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  const std::lock_guard lock(mutex);
  const auto found = known->find(device);
  if (found != known->end()) return found->second;
  return (*known)[device] = read_architecture();
}

}  // namespace shoal::memory::cuda
