// SPDX-License-Identifier: Apache-2.0
// A block computes a tile of kRows rows and kColumns columns of one matrix product of one expert.
// It reads both operands into shared memory as float32, kDepth terms at a time; a thread has 4 x 4
// sums in registers. In the first product half of a tile are columns of gate and half the same
// columns of up, so that one thread has both values of an inner value.
//
// Per (row, expert): 3 * hidden * ffn products and as many sums. A tile of weights is read once per
// kRows rows, mostly from the second-level cache.
#include <cuda_runtime.h>

#include <algorithm>

#include "ep/numeric/numeric.hpp"
#include "moe/expert_kernels.hpp"

namespace shoal::moe {

namespace {

namespace numeric = ep::numeric;

constexpr int kThreads = 256, kRows = 32, kColumns = 128, kDepth = 32, kSums = 4;
static_assert(kThreads / 32 * kSums == kRows && 32 * kSums == kColumns);

enum class Product { gate_up, down };

__device__ std::int64_t at(const RowStrides& strides, std::int64_t expert, std::int64_t row,
                           std::int64_t element) {
  return expert * strides.expert + row * strides.row + element * strides.element;
}

__device__ float bf16(const void* values, std::int64_t index) {
  return numeric::to_float(static_cast<const numeric::Bf16*>(values)[index]);
}

/// Channel h of a received row.
__device__ float received(const ExpertRows& p, std::int64_t expert, std::int64_t row,
                          std::int64_t h) {
  const std::int64_t index = at(p.x_strides, expert, row, h);
  if (p.scales == nullptr) return bf16(p.x, index);
  const std::int64_t group = h / static_cast<std::int64_t>(numeric::kGroupChannels);
  return numeric::mul(numeric::decode_e4m3(static_cast<const std::uint8_t*>(p.x)[index]),
                      p.scales[at(p.scale_strides, expert, row, group)]);
}

template <Product product>
__global__ void __launch_bounds__(kThreads) experts_kernel(const __grid_constant__ ExpertRows p) {
  constexpr bool kFirst = product == Product::gate_up;
  constexpr int kWidth = kFirst ? kColumns / 2 : kColumns;  // columns of the result in a tile
  __shared__ float rows[kRows][kDepth];
  __shared__ float columns[kDepth][kColumns];

  const std::int64_t width = kFirst ? p.ffn : p.hidden, depth = kFirst ? p.hidden : p.ffn;
  const std::int64_t tiles = (width + kWidth - 1) / kWidth;
  const std::int64_t expert = blockIdx.x / tiles, first_column = blockIdx.x % tiles * kWidth;
  const std::int64_t left = p.counts[expert] - std::int64_t{blockIdx.y} * kRows;
  if (left <= 0) return;
  const std::int64_t first_row = (p.ends == nullptr || expert == 0 ? 0 : p.ends[expert - 1]) +
                                 std::int64_t{blockIdx.y} * kRows;
  // gate and up are [hidden, ffn], down after them [ffn, hidden].
  const std::uint16_t* const weights =
      p.weights + (expert * 3 + (kFirst ? 0 : 2)) * p.hidden * p.ffn;

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float sums[kSums][kSums] = {};  // of row kSums * warp + i, column lane + 32 * j
  for (std::int64_t base = 0; base < depth; base += kDepth) {
    const std::int64_t term = base + lane;
    for (int i = 0; i < kSums; ++i) {
      const int row = kSums * warp + i;
      float value = 0;
      if (row < left && term < depth)
        value = kFirst ? received(p, expert, first_row + row, term)
                       : p.inner[at(p.inner_strides, expert, first_row + row, term)];
      rows[row][lane] = value;
    }
    for (int i = threadIdx.x; i < kDepth * kColumns; i += kThreads) {
      const int k = i / kColumns, c = i % kColumns;
      const std::int64_t column = first_column + c % kWidth;
      const std::int64_t matrix = c / kWidth * p.hidden * p.ffn;
      columns[k][c] = base + k < depth && column < width
                          ? bf16(weights, matrix + (base + k) * width + column)
                          : 0;
    }
    __syncthreads();
#pragma unroll 8
    for (int k = 0; k < kDepth; ++k)
      for (int i = 0; i < kSums; ++i)
        for (int j = 0; j < kSums; ++j)
          sums[i][j] =
              numeric::accumulate(sums[i][j], rows[kSums * warp + i][k], columns[k][lane + 32 * j]);
    __syncthreads();
  }

  for (int i = 0; i < kSums; ++i) {
    const std::int64_t row = first_row + kSums * warp + i;
    if (kSums * warp + i >= left) return;
    for (int j = 0; j < kWidth / 32; ++j) {
      const std::int64_t column = first_column + lane + 32 * j;
      if (column >= width) continue;
      if constexpr (kFirst) {
        const float gate = sums[i][j], up = sums[i][j + kSums / 2];
        p.inner[at(p.inner_strides, expert, row, column)] = gate / (1 + expf(-gate)) * up;
      } else {
        const float weight = p.row_weights == nullptr ? 1 : p.row_weights[row];
        p.y[at(p.y_strides, expert, row, column)] =
            numeric::to_bf16(numeric::mul(weight, sums[i][j])).bits;
      }
    }
  }
}

unsigned blocks(std::int64_t count, std::int64_t tile) {
  return static_cast<unsigned>((count + tile - 1) / tile);
}

}  // namespace

cudaError_t load_experts() {
  cudaFuncAttributes attributes{};
  const cudaError_t first = cudaFuncGetAttributes(&attributes, experts_kernel<Product::gate_up>);
  return first != cudaSuccess ? first
                              : cudaFuncGetAttributes(&attributes, experts_kernel<Product::down>);
}

cudaError_t launch_experts(const ExpertRows& rows, cudaStream_t stream) {
  if (rows.most_rows == 0) return cudaSuccess;
  const auto experts = static_cast<unsigned>(rows.experts), tiles = blocks(rows.most_rows, kRows);
  experts_kernel<Product::gate_up>
      <<<dim3(experts * blocks(rows.ffn, kColumns / 2), tiles), kThreads, 0, stream>>>(rows);
  experts_kernel<Product::down>
      <<<dim3(experts * blocks(rows.hidden, kColumns), tiles), kThreads, 0, stream>>>(rows);
  return cudaGetLastError();
}

}  // namespace shoal::moe
