// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/low_latency/send/dispatch_send.cuh"

namespace shoal::ep::cuda {
namespace {

/// Encodings with scales of one byte take more registers than two blocks on an SM have.
template <RowKind kRows>
constexpr int kBlocksPerMultiprocessor = kRows == RowKind::wide ? 2 : 1;

namespace low_latency {

/// kCounts: counts(call.group), as in the other kernels.
template <bool kCounts, RowKind kRows>
__global__ void __launch_bounds__(dispatch_send::kMaxThreads + 32, kBlocksPerMultiprocessor<kRows>)
    dispatch_send_kernel(const __grid_constant__ LowLatencyDispatchSend call) {
  begin_kernel();
  dispatch_send::send<kCounts, kRows, false, 1>(call, all_blocks());
}

}  // namespace low_latency

template <RowKind kRows>
auto* kernel_of(bool counts) {
  return counts ? low_latency::dispatch_send_kernel<true, kRows>
                : low_latency::dispatch_send_kernel<false, kRows>;
}

}  // namespace

void launch_low_latency_dispatch_send(const LowLatencyDispatchSend& call,
                                      const LowLatencyLimits& limits, cudaStream_t stream) {
  const std::int32_t most =
      limits.most_blocks > 0 ? limits.most_blocks : 4 * limits.multiprocessors;
  const bool counted = counts(call.group);
  launch(
      call.group.top_k > kOnePerLane
          ? many_slots_dispatch_send(counted, call.quantize)
          : for_row_kind(call.quantize, [&](auto rows) { return kernel_of<rows.value>(counted); }),
      dispatch_send::blocks_of(call, most), dispatch_send::threads_of(call.sizes), 0, call, limits,
      stream);
}

void load_low_latency_dispatch_send(bool many_slots) {
  for (const bool counted : {false, true})
    for (const Quantize quantize : {Quantize::none, Quantize::mxfp8, Quantize::nvfp4}) {
      const auto kind = static_cast<std::uint32_t>(quantize);
      load_kernel(many_slots ? many_slots_dispatch_send(counted, kind)
                             : for_row_kind(kind, [&](auto rows) {
                                 return kernel_of<rows.value>(counted);
                               }));
    }
}

}  // namespace shoal::ep::cuda
