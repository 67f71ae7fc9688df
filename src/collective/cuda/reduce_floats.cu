// SPDX-License-Identifier: Apache-2.0
// reduce_floats.cu: reductions of float and double.
#include "collective/cuda/reduce_kernels.cuh"

namespace shoal::collective::kernels {

const char* reduce_floats(const Launch* launch, cuda::ElementType type, ReduceOp op,
                          const ReduceArguments& arguments) {
  return type == cuda::ElementType::float32 ? reduce_floating<float>(launch, op, arguments)
                                            : reduce_floating<double>(launch, op, arguments);
}

}  // namespace shoal::collective::kernels
