// SPDX-License-Identifier: Apache-2.0
// reduce_small_integers.cu: reductions of integers of 1 and 2 bytes.
#include "collective/cuda/reduce_kernels.cuh"

namespace shoal::collective::kernels {

const char* reduce_small_integers(const Launch* launch, cuda::ElementType type, ReduceOp op,
                                  const ReduceArguments& arguments) {
  using cuda::ElementType;
  if (type <= ElementType::uint8)
    return reduce_integers<std::int8_t>(launch, type == ElementType::int8, op, arguments);
  return reduce_integers<std::int16_t>(launch, type == ElementType::int16, op, arguments);
}

}  // namespace shoal::collective::kernels
