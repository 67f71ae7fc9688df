// SPDX-License-Identifier: Apache-2.0
// stage_output.cu: copies expert output that the ranks of this node do not reach to the staging
// area of this rank's block, or sums it there (CombineOptions::topk_rows). Before a combine between
// nodes.
//
// Moves: each received row once (each row that topk_rows names), and its weights. A sum is float32,
// top-k slots ascending, rounded once. Waits for nothing; the combine follows on the stream. The
// area is free: the previous combine ended when all ranks of the node had read it.
#include "ep/cuda/device/vectors.cuh"
#include "ep/cuda/normal/device/combine_sums.cuh"
#include "ep/cuda/normal/internode/kernels.cuh"

namespace shoal::ep::cuda {
namespace {

template <class Format>
__device__ void stage_row(const NormalCombine& params, std::uint64_t epoch, std::int32_t row) {
  constexpr int kParts = 4;
  auto* const to = reinterpret_cast<uint4*>(staging_row(params, row));
  std::int32_t from = lane_id() == 0 ? row : -1;
  if (params.staging.topk_rows != nullptr)
    from = checked_row_of_slot(params, epoch, row, load_row_of_slot(params, row), true);
  const std::uint32_t votes = __ballot_sync(~0u, from >= 0), vectors = params.row_bytes / 16;
  for (std::uint32_t first = lane_id(); first < vectors + lane_id(); first += 32 * kParts) {
    float sums[kParts][Format::kCount] = {};
    uint4 parts[kParts];
    for (std::uint32_t left = votes; left != 0; left &= left - 1) {
      const std::int64_t at = __shfl_sync(~0u, from, __ffs(static_cast<int>(left)) - 1);
      const auto* const vector =
          reinterpret_cast<const uint4*>(params.staging.rows + at * params.row_bytes);
#pragma unroll
      for (int i = 0; i < kParts; ++i)
        if (first + 32 * i < vectors) parts[i] = __ldcs(vector + first + 32 * i);
#pragma unroll
      for (int i = 0; i < kParts; ++i)
        if (first + 32 * i < vectors) add_vector<Format>(sums[i], parts[i]);
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      if (first + 32 * i < vectors)
        to[first + 32 * i] =
            params.staging.topk_rows != nullptr ? Format::narrow(sums[i]) : parts[i];
  }
}

template <class Format>
__global__ void __launch_bounds__(kRailWarps * 32)
    stage_output_kernel(const __grid_constant__ StageOutput all) {
  const NormalCombine& params = all.normal;
  if (aborted(params.group) || *params.handle.epoch == kRefused) return;
  const std::uint64_t epoch = params.group.memory->epoch + 1;
  if (blockIdx.x == 0 && threadIdx.x == 0) note_front(params.group, KernelKind::normal, epoch);
  const std::int32_t rows = params.handle.received[params.group.me];
  const auto warps = static_cast<std::int32_t>(blockDim.x / 32);
  for (std::int32_t row = static_cast<std::int32_t>(blockIdx.x) * warps +
                          static_cast<std::int32_t>(threadIdx.x / 32);
       row < rows; row += static_cast<std::int32_t>(gridDim.x) * warps) {
    if (params.staging.rows != nullptr) stage_row<Format>(params, epoch, row);
    stage_weights(params, row, row + 1);
  }
}

using StageKernel = void (*)(StageOutput);

StageKernel kernel_for(std::uint32_t dtype) {
  switch (static_cast<DataType>(dtype)) {
    case DataType::float32:
      return stage_output_kernel<Float32Vector>;
    case DataType::float16:
      return stage_output_kernel<Float16Vector>;
    default:
      return stage_output_kernel<Bfloat16Vector>;
  }
}

}  // namespace

void launch_stage_output(const StageOutput& params, std::int32_t blocks, cudaStream_t stream) {
  NormalPlan plan;
  plan.blocks = blocks;
  plan.warps = kRailWarps;
  launch(kernel_for(params.normal.dtype), params, plan, stream);
}

void preload_stage_output() {
  cudaFuncAttributes attributes;
  for (const DataType dtype : {DataType::float32, DataType::float16, DataType::bfloat16})
    (void)cudaFuncGetAttributes(&attributes, kernel_for(static_cast<std::uint32_t>(dtype)));
}

}  // namespace shoal::ep::cuda
