// SPDX-License-Identifier: Apache-2.0
// reduce_integers64.cu: reductions of integers of 8 bytes.
#include "collective/cuda/reduce_kernels.cuh"

namespace shoal::collective::kernels {

const char* reduce_integers64(const Launch* launch, cuda::ElementType type, ReduceOp op,
                              const ReduceArguments& arguments) {
  return reduce_integers<std::int64_t>(launch, type == cuda::ElementType::int64, op, arguments);
}

}  // namespace shoal::collective::kernels
