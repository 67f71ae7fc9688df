// SPDX-License-Identifier: Apache-2.0
// unpack.cu: copies the fields that travelled with the rows of a dispatch to contiguous arrays,
// with zeros in rows without a token.
//
// Moves: the side records of a result (detail::SideRecord), read once from the group's memory and
// written to arrays of the caller, four bytes a thread and step. Waits for nothing: it follows the
// dispatch on the stream, which has ended when this kernel starts.
#include <algorithm>

#include "ep/cuda/normal/device/kernels.cuh"
#include "shoal/device/ptx.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr int kThreads = 512;
/// Enough to hide the latency of memory; more blocks start later than they save.
constexpr std::int64_t kMostBlocks = 512;

__global__ void __launch_bounds__(kThreads)
    unpack_kernel(const __grid_constant__ NormalUnpack params) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  const std::int64_t start = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int a = 0; a < params.count; ++a) {
    const UnpackedArray& array = params.arrays[a];
    for (std::int64_t i = start; i < array.words;
         i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
      const std::uint32_t row = array.by_row.quotient(static_cast<std::uint32_t>(i));
      const std::uint32_t column = static_cast<std::uint32_t>(i) - row * array.by_row.divisor;
      const std::uint32_t element = column >> array.wide, word = column & array.wide;
      array.to[array.places.first(row) + element * array.places.step + word] =
          array.from[row * array.from_stride + column];
    }
  }
  if (params.cleared == nullptr) return;
  for (std::int64_t i = *params.row_count * params.row_vectors + start; i < params.vectors;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads)
    params.cleared[i] = uint4{};
}

}  // namespace

void launch_unpack(const NormalUnpack& params, bool overlap_launches, cudaStream_t stream) {
  std::int64_t most = params.vectors;
  for (int a = 0; a < params.count; ++a) most = std::max(most, params.arrays[a].words);
  if (most == 0) return;
  NormalPlan plan;
  plan.overlap_launches = overlap_launches;
  plan.blocks = static_cast<std::int32_t>(std::min((most + kThreads - 1) / kThreads, kMostBlocks));
  plan.warps = kThreads / 32;
  launch(unpack_kernel, params, plan, stream);
}

void preload_unpack() {
  cudaFuncAttributes attributes;
  (void)cudaFuncGetAttributes(&attributes, unpack_kernel);
}

}  // namespace shoal::ep::cuda
