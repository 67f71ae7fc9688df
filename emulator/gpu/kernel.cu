// SPDX-License-Identifier: Apache-2.0
#include "gpu/kernel.hpp"

#include "gpu/cuda_platform.cuh"
#include "gpu/dispatcher.hpp"
#include "gpu/worker.hpp"

namespace shoal::emulator::gpu {
namespace {

constexpr int kMostThreads = kMostWarps * 32;
static_assert(kMostDispatchers <= kMostWarps);

template <typename T>
constexpr std::uint32_t kRoom = (sizeof(T) + 15) / 16 * 16;

constexpr std::uint32_t memory_of(std::uint32_t pairs, std::uint32_t dispatchers) {
  return kRoom<Common> + dispatchers * kRoom<Scratch> + pairs * sizeof(Pair);
}
static_assert(memory_of(kMostPairs, 1) <= 163 * 1024, "shared memory of sm_80");

/// By one warp of the block of dispatchers.
__device__ void dispatch(NicState& state, unsigned char* memory, std::uint32_t count) {
  const CudaPlatform platform;
  const std::uint32_t index = threadIdx.x / 32;
  Dispatcher<CudaPlatform> dispatcher(
      state, *reinterpret_cast<Common*>(memory),
      *reinterpret_cast<Scratch*>(memory + kRoom<Common> + index * kRoom<Scratch>),
      reinterpret_cast<Pair*>(memory + kRoom<Common> + count * kRoom<Scratch>), index, count,
      platform);
  while (dispatcher.step()) {
  }
  dispatcher.close();
}

/// Ends when the dispatchers have ended and all jobs are done.
__device__ void work(NicState& state) {
  const CudaPlatform platform;
  Worker<CudaPlatform> worker(state.ring, platform);
  for (;;) {
    const WorkerState done = worker.step();
    if (done == WorkerState::closed) return;
    if (done == WorkerState::waiting) platform.pause();
  }
}

__global__ void resume_nic_kernel(NicState* state) {
  resume(*state);
}

__global__ void __launch_bounds__(kMostThreads, 1)
    nic_kernel(NicState* state, std::uint32_t dispatchers) {
  extern __shared__ __align__(16) unsigned char memory[];
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0)
      begin(*state, *reinterpret_cast<Common*>(memory), dispatchers, CudaPlatform());
    __syncthreads();
  }
  if (blockIdx.x == 0 && threadIdx.x < 32 * dispatchers)
    dispatch(*state, memory, dispatchers);
  else if (blockIdx.x != 0 || gridDim.x == 1)
    work(*state);
}

}  // namespace

cudaError_t launch_nic(NicState* state, std::uint32_t pairs, const NicShape& shape,
                       cudaStream_t stream, bool resumes) {
  if (resumes) resume_nic_kernel<<<1, 1, 0, stream>>>(state);
  nic_kernel<<<shape.blocks, shape.warps * 32, memory_of(pairs, shape.dispatchers), stream>>>(
      state, shape.dispatchers);
  return cudaGetLastError();
}

cudaError_t prepare_nic(std::uint32_t pairs, NicShape& shape) {
  int device = 0, most = 0;
  cudaError_t result = cudaGetDevice(&device);
  if (result == cudaSuccess)
    result = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (result != cudaSuccess) return result;
  // Beside workers, dispatchers are slower: there they leave all warps but one to them.
  const auto warps = static_cast<std::uint32_t>(shape.blocks == 1 ? 1 : shape.warps);
  shape.dispatchers = pairs < warps ? pairs : warps;
  if (shape.dispatchers > kMostDispatchers) shape.dispatchers = kMostDispatchers;
  if (shape.dispatchers == 0) shape.dispatchers = 1;
  while (shape.dispatchers > 1 &&
         memory_of(pairs, shape.dispatchers) > static_cast<std::uint32_t>(most))
    --shape.dispatchers;
  // The limit is shared by all NICs on the GPU.
  return cudaFuncSetAttribute(nic_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
}

std::size_t saved_bytes(std::uint32_t pairs) {
  return Dispatcher<CudaPlatform>::saved_bytes(pairs);
}

}  // namespace shoal::emulator::gpu
