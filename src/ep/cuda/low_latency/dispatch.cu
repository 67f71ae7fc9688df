// SPDX-License-Identifier: Apache-2.0
// dispatch.cu: a low-latency dispatch whose receive follows at once, in one kernel. The host starts
// one launch in place of two, which takes it about 2.5 us less.
//
// The first blocks run dispatch_send.cuh, the last ones dispatch_receive.cuh. Blocks start in the
// order of their numbers and no send waits for a receive, so a receive can wait for the send of any
// block, also where not all blocks run at the same time.
//
// Moves, waits, publishes, memory order: as there.
//
// Measured against two kernels: docs/decisions/low-latency-call-in-one-kernel.md. With 128 tokens a
// pair takes longer, so joined calls have few tokens (joined.hpp).
#include "ep/cuda/low_latency/joined.hpp"
#include "ep/cuda/low_latency/receive/dispatch_receive.cuh"
#include "ep/cuda/low_latency/send/dispatch_send.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr std::uint32_t kMostThreads =
    std::max(dispatch_send::kMaxThreads + 32, dispatch_receive::kThreads);

namespace low_latency {

__global__ void __launch_bounds__(kMostThreads, 1)
    dispatch_kernel(const __grid_constant__ LowLatencyDispatch call) {
  begin_kernel();
  if (blockIdx.x < call.send_blocks)
    dispatch_send::send<false>(call.send, {blockIdx.x, call.send_blocks});
  else
    dispatch_receive::receive<false>(call.receive,
                                     {blockIdx.x - call.send_blocks, gridDim.x - call.send_blocks});
}

}  // namespace low_latency
}  // namespace

void launch_low_latency_dispatch(LowLatencyDispatch& call, const LowLatencyLimits& limits,
                                 cudaStream_t stream) {
  const std::int32_t most = most_joined_blocks(limits.multiprocessors);
  call.send_blocks = dispatch_send::blocks_of(call.send, most);
  launch(low_latency::dispatch_kernel,
         call.send_blocks + dispatch_receive::divide(
                                call.receive, most - static_cast<std::int32_t>(call.send_blocks)),
         std::max(dispatch_send::threads_of(call.send.sizes), dispatch_receive::kThreads), 0, call,
         limits, stream);
}

void load_low_latency_dispatch() {
  load_kernel(low_latency::dispatch_kernel);
}

}  // namespace shoal::ep::cuda
