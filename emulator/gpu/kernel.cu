// SPDX-License-Identifier: Apache-2.0
#include "gpu/kernel.hpp"

#include "gpu/cuda_platform.cuh"
#include "gpu/dispatcher.hpp"
#include "gpu/worker.hpp"

namespace shoal::emulator::gpu {
namespace {

constexpr int kMostThreads = kMostWarps * 32;
constexpr std::uint32_t kScratchBytes = (sizeof(Scratch) + 15) / 16 * 16;
static_assert(kScratchBytes + kMostPairs * sizeof(Pair) <= 163 * 1024, "shared memory of sm_80");

__device__ void dispatch(NicState& state, unsigned char* memory) {
  const CudaPlatform platform;
  Dispatcher<CudaPlatform> dispatcher(state, *reinterpret_cast<Scratch*>(memory),
                                      reinterpret_cast<Pair*>(memory + kScratchBytes), platform);
  while (dispatcher.step()) {
  }
  dispatcher.close();
}

/// Ends when the dispatcher has ended and all jobs are done.
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

__global__ void __launch_bounds__(kMostThreads, 1) nic_kernel(NicState* state) {
  extern __shared__ __align__(16) unsigned char memory[];
  if (blockIdx.x == 0 && threadIdx.x < 32)
    dispatch(*state, memory);
  else if (blockIdx.x != 0 || gridDim.x == 1)
    work(*state);
}

}  // namespace

cudaError_t launch_nic(NicState* state, std::uint32_t pairs, int blocks, int warps,
                       cudaStream_t stream, bool load_only, bool resumes) {
  const std::uint32_t bytes = kScratchBytes + pairs * sizeof(Pair);
  const cudaError_t set = cudaFuncSetAttribute(
      nic_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (set != cudaSuccess || load_only) return set;
  if (resumes) resume_nic_kernel<<<1, 1, 0, stream>>>(state);
  nic_kernel<<<blocks, warps * 32, bytes, stream>>>(state);
  return cudaGetLastError();
}

std::size_t saved_bytes(std::uint32_t pairs) {
  return Dispatcher<CudaPlatform>::saved_bytes(pairs);
}

}  // namespace shoal::emulator::gpu
