// SPDX-License-Identifier: Apache-2.0
#include "streams.hpp"

#include "../check.hpp"

#ifdef SHOAL_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace shoal::python {

#ifdef SHOAL_WITH_CUDA

namespace {

void check(cudaError_t status, const char* what) {
  require(status == cudaSuccess, Code::system, "{}: {}", what, cudaGetErrorString(status));
}

cudaStream_t consumer_stream(nanobind::handle consumer) {
  const auto number =
      consumer.is_none() ? std::intptr_t{1} : nanobind::cast<std::intptr_t>(consumer);
  require(number != 0, Code::invalid_argument,
          "__dlpack__: stream 0 is ambiguous on CUDA; pass 1 or 2");
  // 1 and 2 are cudaStreamLegacy and cudaStreamPerThread.
  return reinterpret_cast<cudaStream_t>(number);
}

}  // namespace

void order_behind(nanobind::handle consumer, std::uintptr_t producer, int device) {
  if (!consumer.is_none() && nanobind::cast<std::intptr_t>(consumer) == -1) return;
  cudaStream_t to = consumer_stream(consumer);
  const auto from = reinterpret_cast<cudaStream_t>(producer);
  if (to == from) return;
  int before = 0;
  check(cudaGetDevice(&before), "cudaGetDevice");
  check(cudaSetDevice(device), "cudaSetDevice");
  cudaEvent_t event{};
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  const cudaError_t recorded = cudaEventRecord(event, from);
  const cudaError_t waiting =
      recorded == cudaSuccess ? cudaStreamWaitEvent(to, event, 0) : recorded;
  cudaEventDestroy(event);
  cudaSetDevice(before);
  check(waiting, "__dlpack__: ordering two streams");
}

void wait_for_stream(std::uintptr_t stream, int device) {
  int before = 0;
  check(cudaGetDevice(&before), "cudaGetDevice");
  check(cudaSetDevice(device), "cudaSetDevice");
  const cudaError_t waited = cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(stream));
  cudaSetDevice(before);
  check(waited, "waiting for a stream");
}

#else

void order_behind(nanobind::handle, std::uintptr_t, int) {}
void wait_for_stream(std::uintptr_t, int) {}

#endif

}  // namespace shoal::python
