// SPDX-License-Identifier: Apache-2.0
#include "streams.hpp"

#include <algorithm>

#include "../arguments.hpp"
#include "../check.hpp"

#ifdef SHOAL_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace nb = nanobind;

namespace shoal::python {
namespace {

/// The value of an int, or of the attribute of one of torch's objects.
std::uintptr_t number_of(std::string_view call, std::string_view name, nb::handle value,
                         const char* attribute) {
  // hasattr on an int costs more than the check.
  const nb::object number = PyLong_Check(value.ptr()) == 0 && nb::hasattr(value, attribute)
                                ? nb::object(value.attr(attribute))
                                : nb::borrow(value);
  std::uintptr_t result = 0;
  if (!nb::try_cast(number, result))
    wrong_type(call, name, value,
               name == "stream" ? "None, a torch.cuda.Stream or its number"
                                : "None, a torch.cuda.Event or its number");
  return result;
}

}  // namespace

Stream stream_from(std::string_view call, nb::handle value) {
  if (value.is_none()) return nullptr;
  // CUDA and torch write the default stream as 0; in C++ nullptr is the group's own stream.
  return reinterpret_cast<Stream>(
      std::max<std::uintptr_t>(number_of(call, "stream", value, "cuda_stream"), 1));
}

Event event_from(std::string_view call, std::string_view name, nb::handle value) {
  if (value.is_none()) return nullptr;
  const std::uintptr_t number = number_of(call, name, value, "cuda_event");
  require(number != 0, Code::invalid_argument,
          "{}: the event has no cudaEvent_t yet; torch creates it at the first record()", name);
  return reinterpret_cast<Event>(number);
}

#ifdef SHOAL_WITH_CUDA

namespace {

void check(cudaError_t status, const char* what) {
  require(status == cudaSuccess, Code::system, "{}: {}", what, cudaGetErrorString(status));
}

cudaStream_t consumer_stream(nb::handle consumer) {
  const auto number = consumer.is_none() ? std::intptr_t{1} : nb::cast<std::intptr_t>(consumer);
  require(number != 0, Code::invalid_argument,
          "__dlpack__: stream 0 is ambiguous on CUDA; pass 1 or 2");
  // 1 and 2 are cudaStreamLegacy and cudaStreamPerThread.
  return reinterpret_cast<cudaStream_t>(number);
}

}  // namespace

void order_behind(nb::handle consumer, std::uintptr_t producer, int device) {
  if (!consumer.is_none() && nb::cast<std::intptr_t>(consumer) == -1) return;
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

void order_behind(nb::handle, std::uintptr_t, int) {}
void wait_for_stream(std::uintptr_t, int) {}

#endif

}  // namespace shoal::python
