// SPDX-License-Identifier: Apache-2.0
// The kernel of movement.hpp: the bare data path of a normal-mode kernel. A warp takes every n-th
// row of a list, loads it into shared memory and stores it to its targets with bulk copies (TMA),
// several rows in flight.
#include <algorithm>

#include "ep/cuda/device/tma.cuh"
#include "gpu/kernels.hpp"
#include "gpu/movement.hpp"

namespace shoal::bench::gpu {
namespace {

constexpr std::uint32_t kMaxWarps = 16, kSharedBytes = 224 << 10;
[[maybe_unused]] constexpr std::uint32_t kMaxStages = 4;

__global__ void move_rows_kernel([[maybe_unused]] Movement movement,
                                 [[maybe_unused]] std::uint32_t stages) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint4 shared[];
  __shared__ std::uint64_t barriers[kMaxWarps][kMaxStages];
  const std::uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  auto* const rows =
      reinterpret_cast<std::byte*>(shared) + std::size_t{warp} * stages * movement.row_bytes;
  if (lane == 0) {
    for (std::uint32_t stage = 0; stage < stages; ++stage)
      ep::cuda::barrier_init(&barriers[warp][stage], 1);
    ep::cuda::barriers_ready();
  }
  __syncwarp();
  const auto number = [&](std::uint32_t n) { return (n * gridDim.x + blockIdx.x) * warps + warp; };
  const auto load = [&](std::uint32_t n) {
    if (lane != 0 || number(n) >= movement.count) return;
    std::uint64_t* const barrier = &barriers[warp][n % stages];
    ep::cuda::barrier_expect(barrier, movement.row_bytes);
    ep::cuda::bulk_load(rows + std::size_t{n % stages} * movement.row_bytes,
                        movement.moves[number(n)].from, movement.row_bytes, barrier);
  };
  for (std::uint32_t n = 0; n + 1 < stages; ++n) load(n);
  for (std::uint32_t n = 0; number(n) < movement.count; ++n) {
    const RowMove move = movement.moves[number(n)];
    ep::cuda::barrier_wait(&barriers[warp][n % stages], n / stages & 1);
    if (lane < move.count)
      ep::cuda::bulk_store(movement.targets[move.first + lane],
                           rows + std::size_t{n % stages} * movement.row_bytes, movement.row_bytes);
    ep::cuda::bulk_commit();
    ep::cuda::bulk_wait_read<1>();  // frees the stage of the previous row
    __syncwarp();
    load(n + stages - 1);
  }
  ep::cuda::bulk_wait_all();
#endif
}

}  // namespace

void move_rows(cudaStream_t stream, const Movement& movement, std::int32_t sms) {
  // As in normal mode: as many rows as fit, two or three a warp.
  const std::uint32_t fit = kSharedBytes / movement.row_bytes, stages = fit >= 24 ? 3 : 2;
  const std::uint32_t warps = std::min(fit / stages, kMaxWarps),
                      bytes = warps * stages * movement.row_bytes;
  check(cudaFuncSetAttribute(move_rows_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             kSharedBytes),
        "shared memory of a kernel");
  move_rows_kernel<<<static_cast<unsigned>(sms), warps * 32, bytes, stream>>>(movement, stages);
  check(cudaGetLastError(), "launch of move_rows");
}

}  // namespace shoal::bench::gpu
