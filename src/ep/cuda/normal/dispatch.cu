// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/normal/device/dispatch.cuh"

namespace shoal::ep::cuda {

void launch_normal_dispatch(const NormalDispatch& params, const NormalPlan& plan,
                            cudaStream_t stream) {
  const auto kernel =
      params.group.top_k <= kOnePerLane ? dispatch_kernel<1> : many_slots_dispatch_kernel;
  launch(kernel(params.expert_alignment > 0, params.encodes != 0, params.by_expert != 0), params,
         plan, stream);
}

void preload_normal_dispatch(bool many_slots, int shared_bytes) {
  const auto preload = [&](DispatchKernel kernel) {
    cudaFuncAttributes attributes;
    (void)cudaFuncGetAttributes(&attributes, kernel);
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               shared_bytes - static_cast<int>(attributes.sharedSizeBytes));
  };
  const auto kernel = many_slots ? many_slots_dispatch_kernel : dispatch_kernel<1>;
  for (const bool expert_major : {false, true})
    for (const bool encodes : {false, true}) preload(kernel(expert_major, encodes, false));
  preload(kernel(true, true, true));
}

}  // namespace shoal::ep::cuda
