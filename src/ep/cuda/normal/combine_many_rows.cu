// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/normal/device/combine.cuh"

namespace shoal::ep::cuda {

CombineKernel many_rows_combine_kernel(AddedRows rows, Quantize quantize, DataType dtype) {
  return combine_kernel<kMostPerLane>(rows, quantize, dtype);
}

}  // namespace shoal::ep::cuda
