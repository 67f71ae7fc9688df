// SPDX-License-Identifier: Apache-2.0
// wait_signals.cu: holds a stream until a GEMM on another stream has signalled its output. One
// block; before a combine whose rows that GEMM writes.
//
// Moves nothing. Waits for words in this GPU's memory, each counted up by the GEMM; publishes
// nothing, because the combine follows on the stream. Memory order: a fence after the last load
// orders the combine's reads of the rows after the signals.
#include <cstdio>

#include "ep/cuda/low_latency/send/wait_signals.hpp"
#include "shoal/device/ptx.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr std::int32_t kThreads = 1024;
constexpr std::uint32_t kPollNs = 200;

__device__ void wait(const WaitSignals& call, std::int32_t expert, std::int32_t block) {
  const volatile std::int32_t* const signal = call.signals + expert * call.blocks + block;
  const std::uint64_t deadline = ptx::globaltimer() + call.timeout_ns;
  while (*signal < call.value) {
    __nanosleep(kPollNs);
    if (ptx::globaltimer() > deadline) {
      printf(
          "shoal: low_latency_combine: the signal of block %d of local expert %d is %d after %llu "
          "ms, expected %d\n",
          block, expert, *signal, static_cast<unsigned long long>(call.timeout_ns / 1000000),
          call.value);
      __trap();  // rows would be sent before they are complete
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    wait_signals_kernel(const __grid_constant__ WaitSignals call) {
  const std::int32_t all = call.experts * call.blocks;
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < all; i += kThreads) {
    const std::int32_t expert = i / call.blocks, block = i % call.blocks;
    if (call.counts == nullptr || block * call.block_rows < call.counts[expert])
      wait(call, expert, block);
  }
  __threadfence();
}

}  // namespace

cudaError_t launch_wait_signals(const WaitSignals& call, cudaStream_t stream) {
  wait_signals_kernel<<<1, kThreads, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace shoal::ep::cuda
