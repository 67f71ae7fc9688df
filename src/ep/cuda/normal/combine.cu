// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ep/cuda/normal/device/combine.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr CombineKernel copying_kernel() {
  return combine_impl<CopiedVector, AddedRows::of_experts, 1>;
}

CombineKernel kernel_for(const NormalCombine& params) {
  if (params.unsummed != 0) return copying_kernel();
  const AddedRows rows = params.staging.topk_rows != nullptr ? AddedRows::of_ranks_summed
                         : params.expert_major != 0          ? AddedRows::of_experts
                                                             : AddedRows::of_ranks;
  const auto kernel = adds_many_rows(params) ? many_rows_combine_kernel : combine_kernel<1>;
  return kernel(rows, static_cast<Quantize>(params.quantize), static_cast<DataType>(params.dtype));
}

}  // namespace

void launch_normal_combine(NormalCombine params, const NormalPlan& plan, cudaStream_t stream) {
  const std::uint32_t segment = params.segment_chunks * params.chunk_bytes;
  params.by_segments = Divisor(std::max(1U, (params.row_bytes + segment - 1) / segment));
  launch(kernel_for(params), params, plan, stream);
}

void preload_normal_combine(bool many_slots, int shared_bytes) {
  const auto preload = [&](CombineKernel kernel) {
    cudaFuncAttributes attributes;
    (void)cudaFuncGetAttributes(&attributes, kernel);
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               shared_bytes - static_cast<int>(attributes.sharedSizeBytes));
  };
  const auto preload_each = [&](auto kernel) {
    for (const AddedRows rows :
         {AddedRows::of_ranks, AddedRows::of_experts, AddedRows::of_ranks_summed}) {
      for (const DataType dtype : {DataType::bfloat16, DataType::float16, DataType::float32})
        preload(kernel(rows, Quantize::none, dtype));
      for (const Quantize quantize : {Quantize::fp8, Quantize::mxfp8})
        if (rows != AddedRows::of_ranks_summed) preload(kernel(rows, quantize, DataType::bfloat16));
    }
  };
  preload(copying_kernel());
  preload_each(combine_kernel<1>);
  if (many_slots) preload_each(many_rows_combine_kernel);
}

}  // namespace shoal::ep::cuda
