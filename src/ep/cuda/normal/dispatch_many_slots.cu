// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/normal/device/dispatch.cuh"

namespace shoal::ep::cuda {

DispatchKernel many_slots_dispatch_kernel(bool expert_major, bool encodes, bool by_expert) {
  return dispatch_kernel<kMostPerLane>(expert_major, encodes, by_expert);
}

}  // namespace shoal::ep::cuda
