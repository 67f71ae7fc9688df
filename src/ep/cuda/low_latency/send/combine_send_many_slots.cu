// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/low_latency/send/combine_send.cuh"

namespace shoal::ep::cuda {
namespace {
namespace low_latency {

template <CombineRowForm kForm, bool kCounts>
__global__ void __launch_bounds__(combine_send::threads_of(kForm), 1)
    combine_send_kernel(const __grid_constant__ LowLatencyCombineSend call) {
  begin_kernel();
  combine_send::send<kForm, false, kCounts, false, kMostPerLane>(call, all_blocks());
}

}  // namespace low_latency
}  // namespace

void (*many_slots_combine_send(bool counted, CombineRowForm form))(LowLatencyCombineSend) {
  return for_combine_form(form, [&](auto of) {
    return counted ? low_latency::combine_send_kernel<of.value, true>
                   : low_latency::combine_send_kernel<of.value, false>;
  });
}

}  // namespace shoal::ep::cuda
