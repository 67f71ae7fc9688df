// SPDX-License-Identifier: Apache-2.0
// clock.cu: the GPU's clock, for the host: one thread writes %globaltimer to host memory.
//
// Moves 16 bytes. Waits for nothing. Memory order: the time, then a fence at system scope, then the
// number of the question, which the host polls.
#include "ep/cuda/group/clock.hpp"
#include "shoal/device/ptx.cuh"

namespace shoal::ep::cuda {
namespace {

__global__ void clock_kernel(ClockReading* reading, std::uint64_t question) {
  reading->time = ptx::globaltimer();
  __threadfence_system();
  reading->question = question;
}

}  // namespace

void launch_clock(ClockReading* reading, std::uint64_t question, cudaStream_t stream) {
  clock_kernel<<<1, 1, 0, stream>>>(reading, question);
}

void preload_clock() {
  cudaFuncAttributes attributes{};
  (void)cudaFuncGetAttributes(&attributes, clock_kernel);
}

}  // namespace shoal::ep::cuda
