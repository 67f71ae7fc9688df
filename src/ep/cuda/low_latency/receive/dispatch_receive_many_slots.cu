// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/low_latency/receive/dispatch_receive.cuh"

namespace shoal::ep::cuda {
namespace {
namespace low_latency {

template <bool kCounts, RowKind kRows>
__global__ void __launch_bounds__(dispatch_receive::kThreads, 1)
    dispatch_receive_kernel(const __grid_constant__ LowLatencyDispatchReceive call) {
  begin_kernel(call.chained != 0);
  dispatch_receive::receive<kCounts, kRows, false, kMostPerLane>(call, call.group, all_blocks());
  end_chained(call.chained != 0);
}

}  // namespace low_latency
}  // namespace

void (*many_slots_dispatch_receive(bool counted,
                                   std::uint32_t quantize))(LowLatencyDispatchReceive) {
  return for_row_kind(quantize, [&](auto rows) {
    return counted ? low_latency::dispatch_receive_kernel<true, rows.value>
                   : low_latency::dispatch_receive_kernel<false, rows.value>;
  });
}

}  // namespace shoal::ep::cuda
