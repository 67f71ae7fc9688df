// SPDX-License-Identifier: Apache-2.0
// encode_rows.cu: bfloat16 rows in a format (Quantize), before a dispatch whose kernel sends rows
// as they are: between nodes, and on GPUs without bulk copies. A warp takes a row.
//
// Moves: reads x once, writes codes and scales. Waits for nothing; the dispatch follows on the
// stream.
#include "ep/cuda/device/tma.cuh"
#include "ep/cuda/normal/device/encode_rows.cuh"
#include "ep/cuda/normal/device/kernels.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr std::uint32_t kThreads = 256;

namespace normal {

__global__ void __launch_bounds__(kThreads)
    encode_rows_kernel(const __grid_constant__ NormalEncodeRows params) {
  const auto token = static_cast<std::int32_t>((blockIdx.x * kThreads + threadIdx.x) / 32);
  if (token >= params.tokens) return;
  encode_row(static_cast<Quantize>(params.quantize),
             params.x + static_cast<std::int64_t>(token) * params.hidden * 2,
             params.codes + static_cast<std::int64_t>(token) * params.row_bytes,
             params.scales + static_cast<std::int64_t>(token) * params.scale_bytes, params.hidden,
             params.global_scale);
}

}  // namespace normal
}  // namespace

void launch_normal_encode_rows(const NormalEncodeRows& params, cudaStream_t stream) {
  if (params.tokens == 0) return;
  constexpr std::int32_t kRows = kThreads / 32;
  normal::encode_rows_kernel<<<static_cast<std::uint32_t>((params.tokens + kRows - 1) / kRows),
                               kThreads, 0, stream>>>(params);
}

void preload_normal_encode_rows() {
  cudaFuncAttributes attributes;
  (void)cudaFuncGetAttributes(&attributes, normal::encode_rows_kernel);
}

}  // namespace shoal::ep::cuda
