// SPDX-License-Identifier: Apache-2.0
// reduce_integers32.cu: reductions of integers of 4 bytes.
#include "collective/cuda/reduce_kernels.cuh"

namespace shoal::collective::kernels {

const char* reduce_integers32(const Launch* launch, cuda::ElementType type, ReduceOp op,
                              const ReduceArguments& arguments) {
  return reduce_integers<std::int32_t>(launch, type == cuda::ElementType::int32, op, arguments);
}

}  // namespace shoal::collective::kernels
