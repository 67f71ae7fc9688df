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
  combine_send::send<kForm, kWhole, kCounts, false, 1>(call, all_blocks());
}

}  // namespace low_latency

/// `whole`: log_fmt rows consist of whole pieces.
auto* kernel_of(bool counted, CombineRowForm form, bool whole) {
  return for_combine_form(form, [&](auto of) {
    constexpr bool kWhole = encoding_of(of.value) == CombineEncoding::log_fmt;
    if (whole)
      return counted ? low_latency::combine_send_kernel<of.value, kWhole, true>
                     : low_latency::combine_send_kernel<of.value, kWhole, false>;
    return counted ? low_latency::combine_send_kernel<of.value, false, true>
                   : low_latency::combine_send_kernel<of.value, false, false>;
  });
}

}  // namespace

void launch_low_latency_combine_send(LowLatencyCombineSend& call, const LowLatencyLimits& limits,
                                     cudaStream_t stream) {
  const std::uint32_t blocks = combine_send::divide(
      call, limits.most_blocks > 0
                ? limits.most_blocks
                : combine_send::kBlocksPerMultiprocessor * limits.multiprocessors);
  const CombineRowForm form = sent_form(call);
  const bool counted = counts(call.group), whole = LogfmtRow<false>(call.sizes.hidden).is_whole();
  launch(call.group.top_k > kOnePerLane ? many_slots_combine_send(counted, form)
                                        : kernel_of(counted, form, whole),
         blocks, combine_send::threads_of(form), 0, call, limits, stream);
}

void load_low_latency_combine_send(bool many_slots) {
  for (const bool counted : {false, true})
    for (const CombineRowForm form : kCombineForms)
      for (const bool whole : {false, true})
        load_kernel(many_slots ? many_slots_combine_send(counted, form)
                               : kernel_of(counted, form, whole));
}

}  // namespace shoal::ep::cuda
