// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/low_latency/receive/combine_receive.cuh"

namespace shoal::ep::cuda {
namespace {

using combine_receive::kFewAhead, combine_receive::kManyAhead;

namespace low_latency {

/// kVariant, kCounts: as for combine_receive::receive.
template <CombineRowForm kForm, int kVariant, bool kCounts>
__global__ void __launch_bounds__(combine_receive::kThreads, 1)
    combine_receive_kernel(const __grid_constant__ LowLatencyCombineReceive call) {
  begin_kernel(call.chained != 0);
  combine_receive::receive<kForm, kVariant, kCounts>(call, all_blocks());
  end_chained(call.chained != 0);
}

}  // namespace low_latency

template <CombineRowForm kForm, int kVariant>
auto* kernel_of(bool counts) {
  return counts ? low_latency::combine_receive_kernel<kForm, kVariant, true>
                : low_latency::combine_receive_kernel<kForm, kVariant, false>;
}

}  // namespace

void launch_low_latency_combine_receive(LowLatencyCombineReceive& call,
                                        const LowLatencyLimits& limits, cudaStream_t stream) {
  const auto [blocks, threads] = combine_receive::divide(
      call, limits.most_blocks > 0 ? limits.most_blocks : 2 * limits.multiprocessors,
      limits.multiprocessors);
  const auto start = [&](auto* kernel) {
    launch(kernel, blocks, threads, 0, call, limits, stream);
  };
  const bool counted = counts(call.group), whole = LogfmtRow<false>(call.sizes.hidden).is_whole();
  switch (call.form) {
    case CombineRowForm::sums:
      return start(call.grants == 0 ? kernel_of<CombineRowForm::sums, kFewAhead>(counted)
                                    : kernel_of<CombineRowForm::sums, kManyAhead>(counted));
    case CombineRowForm::rows:
      return start(call.unsummed != 0 ? kernel_of<CombineRowForm::rows, 1>(counted)
                                      : kernel_of<CombineRowForm::rows, 0>(counted));
    case CombineRowForm::log_fmt_sums:
      return start(whole ? kernel_of<CombineRowForm::log_fmt_sums, 1>(counted)
                         : kernel_of<CombineRowForm::log_fmt_sums, 0>(counted));
    case CombineRowForm::log_fmt:
      return start(whole ? kernel_of<CombineRowForm::log_fmt, 1>(counted)
                         : kernel_of<CombineRowForm::log_fmt, 0>(counted));
    case CombineRowForm::fp8_sums:
      return start(kernel_of<CombineRowForm::fp8_sums, 0>(counted));
    case CombineRowForm::fp8:
      return start(kernel_of<CombineRowForm::fp8, 0>(counted));
    case CombineRowForm::mxfp8_sums:
      return start(kernel_of<CombineRowForm::mxfp8_sums, 0>(counted));
    case CombineRowForm::mxfp8:
      return start(kernel_of<CombineRowForm::mxfp8, 0>(counted));
  }
}

void load_low_latency_combine_receive() {
  for (const bool counted : {false, true}) {
    load_kernel(kernel_of<CombineRowForm::sums, kFewAhead>(counted));
    load_kernel(kernel_of<CombineRowForm::sums, kManyAhead>(counted));
    load_kernel(kernel_of<CombineRowForm::rows, 0>(counted));
    load_kernel(kernel_of<CombineRowForm::rows, 1>(counted));
    load_kernel(kernel_of<CombineRowForm::log_fmt_sums, 0>(counted));
    load_kernel(kernel_of<CombineRowForm::log_fmt_sums, 1>(counted));
    load_kernel(kernel_of<CombineRowForm::log_fmt, 0>(counted));
    load_kernel(kernel_of<CombineRowForm::log_fmt, 1>(counted));
    load_kernel(kernel_of<CombineRowForm::fp8_sums, 0>(counted));
    load_kernel(kernel_of<CombineRowForm::fp8, 0>(counted));
    load_kernel(kernel_of<CombineRowForm::mxfp8_sums, 0>(counted));
    load_kernel(kernel_of<CombineRowForm::mxfp8, 0>(counted));
  }
}

}  // namespace shoal::ep::cuda
