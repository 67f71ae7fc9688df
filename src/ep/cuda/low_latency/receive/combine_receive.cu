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
  combine_receive::receive<kForm, kVariant, kCounts, 1>(call, all_blocks());
  end_chained(call.chained != 0);
}

}  // namespace low_latency

/// `second`: with sums, the receive is deferred; with rows, they are copied; with log_fmt, rows
/// consist of whole pieces.
auto* kernel_of(bool counted, CombineRowForm form, bool second) {
  return for_combine_form(form, [&](auto of) {
    constexpr bool kSums = of.value == CombineRowForm::sums;
    constexpr bool kTwo = kSums || of.value == CombineRowForm::rows ||
                          encoding_of(of.value) == CombineEncoding::log_fmt;
    constexpr int kFirst = kSums ? kFewAhead : 0, kSecond = !kTwo ? kFirst : kSums ? kManyAhead : 1;
    if (second)
      return counted ? low_latency::combine_receive_kernel<of.value, kSecond, true>
                     : low_latency::combine_receive_kernel<of.value, kSecond, false>;
    return counted ? low_latency::combine_receive_kernel<of.value, kFirst, true>
                   : low_latency::combine_receive_kernel<of.value, kFirst, false>;
  });
}

}  // namespace

void launch_low_latency_combine_receive(LowLatencyCombineReceive& call,
                                        const LowLatencyLimits& limits, cudaStream_t stream) {
  const auto [blocks, threads] = combine_receive::divide(
      call, limits.most_blocks > 0 ? limits.most_blocks : 2 * limits.multiprocessors,
      limits.multiprocessors);
  const bool counted = counts(call.group);
  const bool second = call.form == CombineRowForm::sums ? call.grants != 0
                      : call.form == CombineRowForm::rows
                          ? call.unsummed != 0
                          : LogfmtRow<false>(call.sizes.hidden).is_whole();
  launch(call.group.top_k > kOnePerLane
             ? many_slots_combine_receive(counted, call.form, call.unsummed != 0)
             : kernel_of(counted, call.form, second),
         blocks, threads, 0, call, limits, stream);
}

void load_low_latency_combine_receive(bool many_slots) {
  for (const bool counted : {false, true})
    for (const CombineRowForm form : kCombineForms)
      for (const bool second : {false, true})
        load_kernel(many_slots ? many_slots_combine_receive(counted, form, second)
                               : kernel_of(counted, form, second));
}

}  // namespace shoal::ep::cuda
