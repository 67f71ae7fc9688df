// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/low_latency/send/dispatch_send.cuh"

namespace shoal::ep::cuda {
namespace {
namespace low_latency {

template <bool kCounts, RowKind kRows>
__global__ void __launch_bounds__(dispatch_send::kMaxThreads + 32, 1)
    dispatch_send_kernel(const __grid_constant__ LowLatencyDispatchSend call) {
  begin_kernel();
  dispatch_send::send<kCounts, kRows, false, kMostPerLane>(call, all_blocks());
}

}  // namespace low_latency
}  // namespace

void (*many_slots_dispatch_send(bool counted, std::uint32_t quantize))(LowLatencyDispatchSend) {
  return for_row_kind(quantize, [&](auto rows) {
    return counted ? low_latency::dispatch_send_kernel<true, rows.value>
                   : low_latency::dispatch_send_kernel<false, rows.value>;
  });
}

}  // namespace shoal::ep::cuda
