// SPDX-License-Identifier: Apache-2.0
// Loops over rows, one row per block at a time. The kernels are memory-bound: they read and write a
// packed row once per expert, 16 bytes per thread. Dispatch and combine take longer.
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "ep/numeric/numeric.hpp"
#include "moe/cuda/blas.hpp"
#include "moe/cuda/kernels.hpp"
#include "shoal/ep/group.hpp"
#include "shoal/error.hpp"

namespace shoal::moe {

namespace numeric = ep::numeric;

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr std::int64_t kMaxBlocks = 4096;  // blocks loop over further rows
constexpr int kVector = 8;  // channels of a 16-byte load of bfloat16; divides a group of scales

union Chunk {
  uint4 words;
  numeric::Bf16 values[kVector];
};

/// Received rows of either format, indexed by expert (0 in normal mode) and row.
struct Rows {
  const std::byte* data = nullptr;
  bool fp8 = false;
  std::int64_t expert_stride = 0, row_stride = 0;  // in elements
  const float* scales = nullptr;
  std::int64_t scale_expert = 0, scale_row = 0, scale_group = 0;

  /// Channels first .. first + 7 as bfloat16.
  __device__ uint4 load(std::int64_t expert, std::int64_t row, std::int64_t first) const {
    const std::int64_t at = expert * expert_stride + row * row_stride + first;
    if (!fp8) return *reinterpret_cast<const uint4*>(data + at * 2);
    const uint2 codes = *reinterpret_cast<const uint2*>(data + at);
    const std::int64_t group = first / static_cast<std::int64_t>(numeric::kGroupChannels);
    const float scale = scales[expert * scale_expert + row * scale_row + group * scale_group];
    Chunk chunk;
    for (int i = 0; i < kVector; ++i) {
      const std::uint32_t word = i < 4 ? codes.x : codes.y;
      const auto code = static_cast<std::uint8_t>(word >> (i % 4 * 8));
      chunk.values[i] = numeric::to_bf16(numeric::mul(numeric::decode_e4m3(code), scale));
    }
    return chunk.words;
  }
};

/// One warp per group of 128 channels.
__global__ void quantize_kernel(const numeric::Bf16* x, std::uint8_t* codes, float* scales,
                                std::int64_t tokens, std::int64_t hidden) {
  const auto groups = static_cast<std::int64_t>(numeric::group_count(hidden));
  const int lane = threadIdx.x % 32;
  for (std::int64_t i = blockIdx.x * std::int64_t{kWarps} + threadIdx.x / 32; i < tokens * groups;
       i += gridDim.x * std::int64_t{kWarps}) {
    const std::int64_t token = i / groups, group = i % groups;
    const std::int64_t first =
        token * hidden + group * static_cast<std::int64_t>(numeric::kGroupChannels);
    const auto channels = static_cast<std::int64_t>(numeric::group_channels(hidden, group));
    float amax = 0;
    for (std::int64_t c = lane; c < channels; c += 32)
      amax = numeric::max_magnitude(amax, numeric::to_float(x[first + c]));
    for (int step = 16; step > 0; step /= 2)
      amax = numeric::max_magnitude(amax, __shfl_xor_sync(0xffffffffu, amax, step));
    const numeric::Scale scale = numeric::scale_of(amax, numeric::ScaleRounding::none);
    for (std::int64_t c = lane; c < channels; c += 32)
      codes[first + c] =
          numeric::encode_e4m3(numeric::mul(numeric::to_float(x[first + c]), scale.quantize));
    if (lane == 0) scales[i] = scale.dequantize;
  }
}

/// One block per expert; rows in ascending order.
__global__ void index_kernel(const std::int64_t* topk_idx, std::int64_t stride, std::int64_t rows,
                             std::int32_t top_k, const std::int32_t* first_row,
                             std::int32_t* slots) {
  __shared__ std::int32_t in_warp[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  std::int32_t next = first_row[blockIdx.x];
  for (std::int64_t base = 0; base < rows; base += kThreads) {
    const std::int64_t row = base + threadIdx.x;
    std::int32_t choice = -1;
    if (row < rows)
      for (std::int32_t k = 0; k < top_k; ++k)
        if (topk_idx[row * stride + k] == static_cast<std::int64_t>(blockIdx.x)) choice = k;
    const std::uint32_t mine = __ballot_sync(0xffffffffu, choice >= 0);
    if (lane == 0) in_warp[warp] = __popc(mine);
    __syncthreads();
    std::int32_t before = 0, all = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) before += in_warp[w];
      all += in_warp[w];
    }
    if (choice >= 0)
      slots[row * top_k + choice] = next + before + __popc(mine & ((1u << lane) - 1));
    next += all;
    __syncthreads();  // before the next write to in_warp
  }
}

__global__ void pack_kernel(Rows x, const std::int64_t* topk_idx, std::int64_t topk_stride,
                            std::int64_t rows, std::int64_t hidden, std::int32_t top_k,
                            const std::int32_t* slots, std::uint16_t* packed) {
  __shared__ std::int32_t targets[ep::kMaxTopK];
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    if (threadIdx.x < top_k) {
      const bool here = topk_idx[row * topk_stride + threadIdx.x] >= 0;
      targets[threadIdx.x] = here ? slots[row * top_k + threadIdx.x] : -1;
    }
    __syncthreads();
    for (std::int64_t first = threadIdx.x * kVector; first < hidden; first += kThreads * kVector) {
      const uint4 chunk = x.load(0, row, first);
      for (std::int32_t k = 0; k < top_k; ++k)
        if (targets[k] >= 0)
          *reinterpret_cast<uint4*>(packed + targets[k] * hidden + first) = chunk;
    }
    __syncthreads();  // before the next write to targets
  }
}

__global__ void unpack_kernel(const float* y, const std::int64_t* topk_idx,
                              std::int64_t topk_stride, const float* weights,
                              std::int64_t weight_stride, std::int64_t rows, std::int64_t hidden,
                              std::int32_t top_k, const std::int32_t* slots,
                              std::uint16_t* target) {
  __shared__ std::int32_t sources[ep::kMaxTopK];
  __shared__ float factors[ep::kMaxTopK];
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    if (threadIdx.x < top_k) {
      const bool here = topk_idx[row * topk_stride + threadIdx.x] >= 0;
      sources[threadIdx.x] = here ? slots[row * top_k + threadIdx.x] : -1;
      factors[threadIdx.x] = here ? weights[row * weight_stride + threadIdx.x] : 0;
    }
    __syncthreads();
    for (std::int64_t first = threadIdx.x * kVector; first < hidden; first += kThreads * kVector) {
      float sum[kVector] = {};
      for (std::int32_t k = 0; k < top_k; ++k) {
        if (sources[k] < 0) continue;
        const float* const values = y + sources[k] * hidden + first;
        for (int i = 0; i < kVector; ++i)
          sum[i] = numeric::accumulate(sum[i], factors[k], values[i]);
      }
      Chunk chunk;
      for (int i = 0; i < kVector; ++i) chunk.values[i] = numeric::to_bf16(sum[i]);
      *reinterpret_cast<uint4*>(target + row * hidden + first) = chunk.words;
    }
    __syncthreads();
  }
}

__global__ void pack_expert_kernel(Rows x, std::int64_t experts, std::int64_t hidden,
                                   const std::int32_t* counts, const std::int32_t* first_row,
                                   std::uint16_t* packed) {
  for (std::int64_t expert = blockIdx.y; expert < experts; expert += gridDim.y)
    for (std::int64_t row = blockIdx.x; row < counts[expert]; row += gridDim.x) {
      std::uint16_t* const target = packed + (first_row[expert] + row) * hidden;
      for (std::int64_t first = threadIdx.x * kVector; first < hidden; first += kThreads * kVector)
        *reinterpret_cast<uint4*>(target + first) = x.load(expert, row, first);
    }
}

__global__ void unpack_expert_kernel(const float* y, std::int64_t experts, std::int64_t hidden,
                                     const std::int32_t* counts, const std::int32_t* first_row,
                                     std::uint16_t* target, std::int64_t expert_stride,
                                     std::int64_t row_stride) {
  for (std::int64_t expert = blockIdx.y; expert < experts; expert += gridDim.y)
    for (std::int64_t row = blockIdx.x; row < counts[expert]; row += gridDim.x) {
      const float* const source = y + (first_row[expert] + row) * hidden;
      std::uint16_t* const out = target + expert * expert_stride + row * row_stride;
      for (std::int64_t first = threadIdx.x * kVector; first < hidden;
           first += kThreads * kVector) {
        Chunk chunk;
        for (int i = 0; i < kVector; ++i) chunk.values[i] = numeric::to_bf16(source[first + i]);
        *reinterpret_cast<uint4*>(out + first) = chunk.words;
      }
    }
}

__global__ void activate_kernel(const float* gate_up, std::uint16_t* inner, std::int64_t rows,
                                std::int64_t width) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < rows * width;
       i += step) {
    const std::int64_t at = i / width * 2 * width + i % width;
    const float gate = gate_up[at], up = gate_up[at + width];
    inner[i] = numeric::to_bf16(gate / (1 + expf(-gate)) * up).bits;
  }
}

unsigned blocks_for(std::int64_t rows) {
  return static_cast<unsigned>(std::clamp<std::int64_t>(rows, 1, kMaxBlocks));
}

bool on_vectors(const TensorView& tensor) {
  const int strided = tensor.rank - 1;
  const auto bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
  bool fits =
      reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0 && tensor.strides[strided] == 1;
  for (int i = 0; i < strided; ++i) fits = fits && tensor.strides[i] * bytes % 16 == 0;
  return fits;
}

/// Throws without require(): nvcc cannot check its format strings.
void require_vectors(const TensorView& tensor, const char* what) {
  if (!on_vectors(tensor))
    throw Error(Code::unsupported,
                std::string(what) + ": the experts read rows at multiples of 16 bytes; this is " +
                    tensor.describe());
}

Rows rows_of(const TensorView& x, const TensorView& scales) {
  require_vectors(x, "received rows");
  Rows rows;
  rows.data = x.as<std::byte>();
  rows.fp8 = x.dtype == DataType::float8_e4m3;
  rows.row_stride = x.strides[x.rank - 2];
  if (x.rank == 3) rows.expert_stride = x.strides[0];
  if (!rows.fp8) return rows;
  rows.scales = scales.as<float>();
  rows.scale_group = scales.shape[scales.rank - 1] == 1 ? 0 : scales.strides[scales.rank - 1];
  rows.scale_row = scales.strides[scales.rank - 2];
  if (scales.rank == 3) rows.scale_expert = scales.strides[0];
  return rows;
}

dim3 expert_grid(const TensorView& x) {
  const std::int64_t per_expert = std::clamp<std::int64_t>(x.shape[1], 1, 64);
  return {static_cast<unsigned>(per_expert),
          static_cast<unsigned>(std::min<std::int64_t>(x.shape[0], 65535)), 1};
}

}  // namespace

void load_kernels() {
  cudaFuncAttributes attributes{};
  const auto load = [&](auto* kernel) {
    check_cuda(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)),
               "loading the demo's kernels");
  };
  load(quantize_kernel);
  load(index_kernel);
  load(pack_kernel);
  load(unpack_kernel);
  load(pack_expert_kernel);
  load(unpack_expert_kernel);
  load(activate_kernel);
}

void quantize_rows(cudaStream_t stream, const TensorView& x, const TensorView& codes,
                   const TensorView& scales) {
  if (x.shape[0] == 0) return;
  quantize_kernel<<<blocks_for(x.shape[0] * scales.shape[1] / kWarps + 1), kThreads, 0, stream>>>(
      x.as<numeric::Bf16>(), codes.as<std::uint8_t>(), scales.as<float>(), x.shape[0], x.shape[1]);
  check_cuda(cudaGetLastError(), "quantising tokens");
}

void index_rows(cudaStream_t stream, const TensorView& topk_idx, const std::int32_t* first_row,
                std::int64_t experts, std::int32_t* slots) {
  if (topk_idx.shape[0] == 0) return;
  index_kernel<<<static_cast<unsigned>(experts), kThreads, 0, stream>>>(
      topk_idx.as<std::int64_t>(), topk_idx.strides[0], topk_idx.shape[0],
      static_cast<std::int32_t>(topk_idx.shape[1]), first_row, slots);
  check_cuda(cudaGetLastError(), "indexing the rows of experts");
}

void pack_rows(cudaStream_t stream, const TensorView& x, const TensorView& scales,
               const TensorView& topk_idx, const std::int32_t* slots, const Packed& packed) {
  if (x.shape[0] == 0) return;
  pack_kernel<<<blocks_for(x.shape[0]), kThreads, 0, stream>>>(
      rows_of(x, scales), topk_idx.as<std::int64_t>(), topk_idx.strides[0], x.shape[0], x.shape[1],
      static_cast<std::int32_t>(topk_idx.shape[1]), slots, packed.x);
  check_cuda(cudaGetLastError(), "packing rows");
}

void unpack_rows(cudaStream_t stream, const Packed& packed, const TensorView& topk_idx,
                 const TensorView& weights, const std::int32_t* slots, const TensorView& target) {
  if (target.shape[0] == 0) return;
  require_vectors(target, "expert output");
  unpack_kernel<<<blocks_for(target.shape[0]), kThreads, 0, stream>>>(
      packed.y, topk_idx.as<std::int64_t>(), topk_idx.strides[0], weights.as<float>(),
      weights.strides[0], target.shape[0], target.shape[1],
      static_cast<std::int32_t>(topk_idx.shape[1]), slots, target.as<std::uint16_t>());
  check_cuda(cudaGetLastError(), "summing expert output");
}

void pack_expert_rows(cudaStream_t stream, const TensorView& x, const TensorView& scales,
                      const std::int32_t* counts, const Packed& packed) {
  pack_expert_kernel<<<expert_grid(x), kThreads, 0, stream>>>(
      rows_of(x, scales), x.shape[0], x.shape[2], counts, packed.first_row, packed.x);
  check_cuda(cudaGetLastError(), "packing rows");
}

void unpack_expert_rows(cudaStream_t stream, const Packed& packed, const std::int32_t* counts,
                        const TensorView& target) {
  require_vectors(target, "expert output");
  unpack_expert_kernel<<<expert_grid(target), kThreads, 0, stream>>>(
      packed.y, target.shape[0], target.shape[2], counts, packed.first_row,
      target.as<std::uint16_t>(), target.strides[0], target.strides[1]);
  check_cuda(cudaGetLastError(), "copying expert output");
}

void activate(cudaStream_t stream, const float* gate_up, std::uint16_t* inner, std::int64_t rows,
              std::int64_t width) {
  if (rows == 0) return;
  activate_kernel<<<blocks_for(rows * width / kThreads + 1), kThreads, 0, stream>>>(gate_up, inner,
                                                                                    rows, width);
  check_cuda(cudaGetLastError(), "activating inner values");
}

}  // namespace shoal::moe
