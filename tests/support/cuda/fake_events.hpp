// SPDX-License-Identifier: Apache-2.0
// fake_events.hpp: events and memory operations of streams of the fake CUDA driver, whose streams
// execute everything at once. Internal to fake_cuda.cpp.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>

#include "support/cuda/fake_driver_state.hpp"

namespace shoal::test::fake_driver {

inline CUresult event_create(CUevent* event, unsigned) {
  const Call call("event_create", true);
  if (!call) return call.result;
  *event = reinterpret_cast<CUevent>(new int(0));
  state().events.insert(*event);
  return CUDA_SUCCESS;
}
inline CUresult event_destroy(CUevent event) {
  const Call call("event_destroy");
  if (state().events.erase(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
  delete reinterpret_cast<int*>(event);
  return call.result;
}
inline CUresult event_record(CUevent event, CUstream stream) {
  const Call call("event_record", true);
  return call && (!state().events.contains(event) || !state().streams.contains(stream))
             ? CUDA_ERROR_INVALID_HANDLE
             : call.result;
}
inline CUresult event_query(CUevent event) {
  const Call call("event_query", true);
  return call && !state().events.contains(event) ? CUDA_ERROR_INVALID_HANDLE : call.result;
}
inline CUresult stream_wait_event(CUstream stream, CUevent event, unsigned) {
  const Call call("stream_wait_event", true);
  return call && (!state().events.contains(event) || !state().streams.contains(stream))
             ? CUDA_ERROR_INVALID_HANDLE
             : call.result;
}
inline CUresult stream_memory_ops(CUstream stream, unsigned count,
                                  CUstreamBatchMemOpParams* operations, unsigned) {
  const Call call("stream_memory_ops", true);
  if (!call) return call.result;
  if (!state().options.stream_memory_ops) return CUDA_ERROR_NOT_SUPPORTED;
  if (!state().streams.contains(stream)) return CUDA_ERROR_INVALID_HANDLE;
  for (const CUstreamBatchMemOpParams* one = operations; one != operations + count; ++one) {
    const auto& write = one->writeValue;
    if (!known(write.address)) return CUDA_ERROR_INVALID_VALUE;
    void* const word = pointer(write.address);
    if (one->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64)
      std::atomic_ref(*static_cast<std::uint64_t*>(word)).store(write.value64);
    else if (one->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32)
      std::atomic_ref(*static_cast<std::uint32_t*>(word)).store(write.value);
    else
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
}  // namespace shoal::test::fake_driver
