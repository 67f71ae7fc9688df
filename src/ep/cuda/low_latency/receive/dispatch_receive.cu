// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/low_latency/receive/dispatch_receive.cuh"

namespace shoal::ep::cuda {
namespace {

// A block must fit on an SM next to a block of the send that it is chained to. Launch bounds of
// this size make the compiler use few enough registers.
constexpr std::uint32_t kBoundThreads = 640;
static_assert(kBoundThreads >= dispatch_receive::kThreads);

namespace low_latency {

/// kCounts: counts(call.group).
template <bool kCounts, RowKind kRows>
__global__ void __launch_bounds__(kBoundThreads, 1)
    dispatch_receive_kernel(const __grid_constant__ LowLatencyDispatchReceive call) {
  begin_kernel(call.chained != 0);
  dispatch_receive::receive<kCounts, kRows, false, 1>(call, call.group, all_blocks());
  end_chained(call.chained != 0);
}

}  // namespace low_latency

template <RowKind kRows>
auto* kernel_of(bool counts) {
  return counts ? low_latency::dispatch_receive_kernel<true, kRows>
                : low_latency::dispatch_receive_kernel<false, kRows>;
}

}  // namespace

void launch_low_latency_dispatch_receive(LowLatencyDispatchReceive& call,
                                         const LowLatencyLimits& limits, cudaStream_t stream) {
  const std::uint32_t blocks = dispatch_receive::divide(
      call, call.group, limits.most_blocks > 0 ? limits.most_blocks : limits.multiprocessors);
  const bool counted = counts(call.group);
  launch(
      call.group.top_k > kOnePerLane
          ? many_slots_dispatch_receive(counted, call.quantize)
          : for_row_kind(call.quantize, [&](auto rows) { return kernel_of<rows.value>(counted); }),
      blocks, dispatch_receive::kThreads, 0, call, limits, stream);
}

void load_low_latency_dispatch_receive(bool many_slots) {
  for (const bool counted : {false, true})
    for (const Quantize quantize : {Quantize::none, Quantize::mxfp8, Quantize::nvfp4}) {
      const auto kind = static_cast<std::uint32_t>(quantize);
      load_kernel(many_slots ? many_slots_dispatch_receive(counted, kind)
                             : for_row_kind(kind, [&](auto rows) {
                                 return kernel_of<rows.value>(counted);
                               }));
    }
}

}  // namespace shoal::ep::cuda
