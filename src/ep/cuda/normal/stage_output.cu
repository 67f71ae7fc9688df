// SPDX-License-Identifier: Apache-2.0
// stage_output.cu: copies expert output that the ranks of this node do not reach to the staging
// area of this rank's block, or sums it there (CombineOptions::topk_rows), before a combine between
// nodes; on one node, encodes it there (CombineOptions::quantize).
//
// Moves: each received row once (each row that topk_rows names), and its weights. A sum is float32,
// top-k slots ascending, rounded once. An encoded row lies where a copy of it would, and takes half
// of its bytes. Waits for nothing; the combine follows on the stream. The area is free: earlier
// calls ended when all ranks had read and written what they may of it.
#include "ep/cuda/device/vectors.cuh"
#include "ep/cuda/normal/device/combine_sums.cuh"
#include "ep/cuda/normal/device/encoded_units.cuh"

namespace shoal::ep::cuda {
namespace {

/// Threads of a block. Tests use fewer.
constexpr std::int32_t kWarps = 16;

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

/// Stages the row, or the sum, encoded.
template <Quantize kQuantize>
__device__ void stage_encoded_row(const NormalCombine& params, std::uint64_t epoch,
                                  std::int32_t row) {
  const CombineStaging& staging = params.staging;
  const std::uint32_t hidden = params.row_bytes / 2;
  std::byte* const to = staging_row(params, row);
  const auto vectors_of = [&](std::int64_t at) {
    return reinterpret_cast<const uint4*>(staging.rows + at * params.row_bytes);
  };
  if (staging.topk_rows == nullptr) {
    const auto load = [vectors = vectors_of(row)](std::uint32_t unit, bool inside, uint4& low,
                                                  uint4& high) {
      if (!inside) return;
      low = __ldcs(vectors + 2 * unit);
      high = __ldcs(vectors + 2 * unit + 1);
    };
    return encode_units<kQuantize>(load, to, to + hidden, hidden, 1);
  }
  const std::int32_t of_slot =
      checked_row_of_slot(params, epoch, row, load_row_of_slot(params, row), true);
  const std::uint32_t votes = __ballot_sync(~0u, of_slot >= 0);
  const auto load = [&](std::uint32_t unit, bool inside, uint4& low, uint4& high) {
    UnitSum sum;
    for (std::uint32_t left = votes; left != 0; left &= left - 1) {
      const auto* const vectors =
          vectors_of(__shfl_sync(~0u, of_slot, __ffs(static_cast<int>(left)) - 1));
      if (inside) sum.add(__ldcs(vectors + 2 * unit), __ldcs(vectors + 2 * unit + 1));
    }
    low = sum.low();
    high = sum.high();
  };
  encode_units<kQuantize>(load, to, to + hidden, hidden, 1);
}

template <class Format>
__global__ void __launch_bounds__(kWarps * 32)
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
    if (params.staging.rows != nullptr) {
      if constexpr (kIsEncoded<Format>)
        stage_encoded_row<Format::kQuantize>(params, epoch, row);
      else
        stage_row<Format>(params, epoch, row);
    }
    stage_weights(params, row, row + 1);
  }
}

using StageKernel = void (*)(StageOutput);

StageKernel kernel_for(Quantize quantize, DataType dtype) {
  if (quantize == Quantize::fp8) return stage_output_kernel<EncodedRows<Quantize::fp8>>;
  if (quantize == Quantize::mxfp8) return stage_output_kernel<EncodedRows<Quantize::mxfp8>>;
  switch (dtype) {
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
  plan.warps = kWarps;
  launch(kernel_for(static_cast<Quantize>(params.quantize),
                    static_cast<DataType>(params.normal.dtype)),
         params, plan, stream);
}

void preload_stage_output() {
  cudaFuncAttributes attributes;
  for (const DataType dtype : {DataType::float32, DataType::float16, DataType::bfloat16})
    (void)cudaFuncGetAttributes(&attributes, kernel_for(Quantize::none, dtype));
  for (const Quantize quantize : {Quantize::fp8, Quantize::mxfp8})
    (void)cudaFuncGetAttributes(&attributes, kernel_for(quantize, DataType::bfloat16));
}

}  // namespace shoal::ep::cuda
