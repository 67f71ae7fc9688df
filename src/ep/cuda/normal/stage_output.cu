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

template <class Format, int kPerLane>
__device__ void stage_row(const NormalCombine& params, std::uint64_t epoch, std::int32_t row) {
  constexpr int kParts = 4;
  auto* const to = reinterpret_cast<uint4*>(staging_row(params, row));
  const NumberedValues<kPerLane> rows([&](std::uint32_t slot) {
    if (params.staging.topk_rows == nullptr) return slot == 0 ? row : -1;
    return checked_row_of_slot(params, epoch, row, load_row_of_slot(params, row, slot), true, slot);
  });
  const std::uint32_t vectors = params.row_bytes / 16;
  for (std::uint32_t first = lane_id(); first < vectors + lane_id(); first += 32 * kParts) {
    float sums[kParts][Format::kCount] = {};
    uint4 parts[kParts];
    rows.each([&](std::int64_t at) {
      const auto* const vector =
          reinterpret_cast<const uint4*>(params.staging.rows + at * params.row_bytes);
#pragma unroll
      for (int i = 0; i < kParts; ++i)
        if (first + 32 * i < vectors) parts[i] = __ldcs(vector + first + 32 * i);
#pragma unroll
      for (int i = 0; i < kParts; ++i)
        if (first + 32 * i < vectors) add_vector<Format>(sums[i], parts[i]);
    });
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      if (first + 32 * i < vectors)
        to[first + 32 * i] =
            params.staging.topk_rows != nullptr ? Format::narrow(sums[i]) : parts[i];
  }
}

/// Stages the row, or the sum, encoded.
template <Quantize kQuantize, int kPerLane>
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
  const auto rows = checked_rows<kPerLane>(params, epoch, row, true);
  const auto load = [&](std::uint32_t unit, bool inside, uint4& low, uint4& high) {
    UnitSum sum;
    rows.each([&](std::int64_t at) {
      const auto* const vectors = vectors_of(at);
      if (inside) sum.add(__ldcs(vectors + 2 * unit), __ldcs(vectors + 2 * unit + 1));
    });
    low = sum.low();
    high = sum.high();
  };
  encode_units<kQuantize>(load, to, to + hidden, hidden, 1);
}

template <class Format, int kPerLane>
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
        stage_encoded_row<Format::kQuantize, kPerLane>(params, epoch, row);
      else
        stage_row<Format, kPerLane>(params, epoch, row);
    }
    stage_weights(params, row, row + 1);
  }
}

using StageKernel = void (*)(StageOutput);

template <int kPerLane>
StageKernel kernel_for(Quantize quantize, DataType dtype) {
  if (quantize == Quantize::fp8) return stage_output_kernel<EncodedRows<Quantize::fp8>, kPerLane>;
  if (quantize == Quantize::mxfp8)
    return stage_output_kernel<EncodedRows<Quantize::mxfp8>, kPerLane>;
  switch (dtype) {
    case DataType::float32:
      return stage_output_kernel<Float32Vector, kPerLane>;
    case DataType::float16:
      return stage_output_kernel<Float16Vector, kPerLane>;
    default:
      return stage_output_kernel<Bfloat16Vector, kPerLane>;
  }
}

}  // namespace

void launch_stage_output(const StageOutput& params, std::int32_t blocks, cudaStream_t stream) {
  NormalPlan plan;
  plan.blocks = blocks;
  plan.warps = kWarps;
  // A row has slots only where topk_rows names rows for them.
  const bool one_per_lane =
      params.normal.staging.topk_rows == nullptr || params.normal.group.top_k <= kOnePerLane;
  const auto of_lanes = one_per_lane ? kernel_for<1> : kernel_for<kMostPerLane>;
  launch(
      of_lanes(static_cast<Quantize>(params.quantize), static_cast<DataType>(params.normal.dtype)),
      params, plan, stream);
}

void preload_stage_output(bool many_slots) {
  cudaFuncAttributes attributes;
  const auto preload = [&](auto of_lanes) {
    for (const DataType dtype : {DataType::float32, DataType::float16, DataType::bfloat16})
      (void)cudaFuncGetAttributes(&attributes, of_lanes(Quantize::none, dtype));
    for (const Quantize quantize : {Quantize::fp8, Quantize::mxfp8})
      (void)cudaFuncGetAttributes(&attributes, of_lanes(quantize, DataType::bfloat16));
  };
  preload(kernel_for<1>);
  if (many_slots) preload(kernel_for<kMostPerLane>);
}

}  // namespace shoal::ep::cuda
