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
  dispatch_send::send<kCounts, kRows>(call, all_blocks());
}

}  // namespace low_latency
}  // namespace

void launch_low_latency_dispatch_send(const LowLatencyDispatchSend& call,
                                      const LowLatencyLimits& limits, cudaStream_t stream) {
  const std::int32_t most =
      limits.most_blocks > 0 ? limits.most_blocks : 4 * limits.multiprocessors;
  for_row_kind(call.quantize, [&](auto rows) {
    launch(counts(call.group) ? low_latency::dispatch_send_kernel<true, rows.value>
                              : low_latency::dispatch_send_kernel<false, rows.value>,
           dispatch_send::blocks_of(call, most), dispatch_send::threads_of(call.sizes), 0, call,
           limits, stream);
  });
}

void load_low_latency_dispatch_send() {
  for_each_row_kind([](auto rows) {
    load_kernel(low_latency::dispatch_send_kernel<true, rows.value>);
    load_kernel(low_latency::dispatch_send_kernel<false, rows.value>);
  });
}

}  // namespace shoal::ep::cuda
