// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/low_latency/receive/combine_receive.cuh"

namespace shoal::ep::cuda {
namespace {
namespace low_latency {

template <CombineRowForm kForm, int kVariant, bool kCounts>
__global__ void __launch_bounds__(combine_receive::kThreads, 1)
    combine_receive_kernel(const __grid_constant__ LowLatencyCombineReceive call) {
  begin_kernel(call.chained != 0);
  combine_receive::receive<kForm, kVariant, kCounts, kMostPerLane>(call, all_blocks());
  end_chained(call.chained != 0);
}

}  // namespace low_latency
}  // namespace

void (*many_slots_combine_receive(bool counted, CombineRowForm form,
                                  bool unsummed))(LowLatencyCombineReceive) {
  return for_combine_form(form, [&](auto of) {
    constexpr int kFirst = of.value == CombineRowForm::sums ? combine_receive::kManyAhead : 0;
    constexpr int kSecond = of.value == CombineRowForm::rows ? 1 : kFirst;
    if (unsummed)
      return counted ? low_latency::combine_receive_kernel<of.value, kSecond, true>
                     : low_latency::combine_receive_kernel<of.value, kSecond, false>;
    return counted ? low_latency::combine_receive_kernel<of.value, kFirst, true>
                   : low_latency::combine_receive_kernel<of.value, kFirst, false>;
  });
}

}  // namespace shoal::ep::cuda
