// SPDX-License-Identifier: Apache-2.0
// reduce_halves.cu: reductions of float16 and bfloat16, which are accumulated in float.
#include "collective/cuda/reduce_kernels.cuh"

namespace shoal::collective::kernels {

const char* reduce_halves(const Launch* launch, cuda::ElementType type, ReduceOp op,
                          const ReduceArguments& arguments) {
  return type == cuda::ElementType::float16
             ? reduce_floating<device::Float16>(launch, op, arguments)
             : reduce_floating<device::BFloat16>(launch, op, arguments);
}

}  // namespace shoal::collective::kernels
