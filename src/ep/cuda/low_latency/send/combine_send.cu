// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/low_latency/send/combine_send.cuh"

namespace shoal::ep::cuda {
namespace {

namespace low_latency {

/// kWhole, kCounts: as for combine_send::send.
template <CombineRowForm kForm, bool kWhole, bool kCounts>
__global__ void __launch_bounds__(combine_send::threads_of(kForm),
                                  combine_send::kBlocksPerMultiprocessor)
    combine_send_kernel(const __grid_constant__ LowLatencyCombineSend call) {
  begin_kernel();
  combine_send::send<kForm, kWhole, kCounts>(call, all_blocks());
}

}  // namespace low_latency

template <CombineRowForm kForm, bool kWhole>
auto* kernel_of(bool counts) {
  return counts ? low_latency::combine_send_kernel<kForm, kWhole, true>
                : low_latency::combine_send_kernel<kForm, kWhole, false>;
}

}  // namespace

void launch_low_latency_combine_send(LowLatencyCombineSend& call, const LowLatencyLimits& limits,
                                     cudaStream_t stream) {
  const std::uint32_t blocks = combine_send::divide(
      call, limits.most_blocks > 0
                ? limits.most_blocks
                : combine_send::kBlocksPerMultiprocessor * limits.multiprocessors);
  const CombineRowForm form = sent_form(call);
  const auto start = [&](auto* kernel) {
    launch(kernel, blocks, combine_send::threads_of(form), 0, call, limits, stream);
  };
  const bool counted = counts(call.group), whole = LogfmtRow<false>(call.sizes.hidden).is_whole();
  switch (form) {
    case CombineRowForm::sums:
      return start(kernel_of<CombineRowForm::sums, false>(counted));
    case CombineRowForm::rows:
      return start(kernel_of<CombineRowForm::rows, false>(counted));
    case CombineRowForm::log_fmt_sums:
      return start(whole ? kernel_of<CombineRowForm::log_fmt_sums, true>(counted)
                         : kernel_of<CombineRowForm::log_fmt_sums, false>(counted));
    case CombineRowForm::log_fmt:
      return start(whole ? kernel_of<CombineRowForm::log_fmt, true>(counted)
                         : kernel_of<CombineRowForm::log_fmt, false>(counted));
    case CombineRowForm::fp8_sums:
      return start(kernel_of<CombineRowForm::fp8_sums, false>(counted));
    case CombineRowForm::fp8:
      return start(kernel_of<CombineRowForm::fp8, false>(counted));
    case CombineRowForm::mxfp8_sums:
      return start(kernel_of<CombineRowForm::mxfp8_sums, false>(counted));
    case CombineRowForm::mxfp8:
      return start(kernel_of<CombineRowForm::mxfp8, false>(counted));
  }
}

void load_low_latency_combine_send() {
  for (const bool counted : {false, true}) {
    load_kernel(kernel_of<CombineRowForm::sums, false>(counted));
    load_kernel(kernel_of<CombineRowForm::rows, false>(counted));
    load_kernel(kernel_of<CombineRowForm::log_fmt_sums, false>(counted));
    load_kernel(kernel_of<CombineRowForm::log_fmt_sums, true>(counted));
    load_kernel(kernel_of<CombineRowForm::log_fmt, false>(counted));
    load_kernel(kernel_of<CombineRowForm::log_fmt, true>(counted));
    load_kernel(kernel_of<CombineRowForm::fp8_sums, false>(counted));
    load_kernel(kernel_of<CombineRowForm::fp8, false>(counted));
    load_kernel(kernel_of<CombineRowForm::mxfp8_sums, false>(counted));
    load_kernel(kernel_of<CombineRowForm::mxfp8, false>(counted));
  }
}

}  // namespace shoal::ep::cuda
