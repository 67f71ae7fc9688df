// SPDX-License-Identifier: Apache-2.0
// dispatch.cu: a low-latency dispatch whose receive follows at once, in one kernel. The host starts
// one launch in place of two.
//
// The first blocks run dispatch_send.cuh, and all blocks dispatch_receive.cuh; those without tokens
// come first in the order of the receive, so that the first rows do not wait for a send. There is
// at most one block on an SM, so all blocks run at the same time once the kernels of other streams
// have ended, and a receive can wait for the send of any block.
//
// Moves, waits, publishes, memory order: as there.
//
// Measured against two kernels: docs/decisions/low-latency-call-in-one-kernel.md. With 128 tokens a
// pair takes longer, so joined calls have few tokens (joined.hpp).
#include "ep/cuda/low_latency/receive/dispatch_receive.cuh"
#include "ep/cuda/low_latency/send/dispatch_send.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr std::uint32_t kMostThreads =
    std::max(dispatch_send::kMaxThreads + 32, dispatch_receive::kThreads);

namespace low_latency {

template <RowKind kRows>
__global__ void __launch_bounds__(kMostThreads, 1)
    dispatch_kernel(const __grid_constant__ LowLatencyDispatch call) {
  begin_kernel();
  const BlockRange send{blockIdx.x, call.send_blocks};
  if (send.me < send.count) dispatch_send::send<false, kRows, true, 1>(call.send, send);
  const BlockRange receive{gridDim.x - 1 - blockIdx.x, call.receive_blocks};
  if (receive.me < receive.count)
    dispatch_receive::receive<false, kRows, true, 1>(call.receive, call.send.group, receive);
}

}  // namespace low_latency
}  // namespace

void launch_low_latency_dispatch(LowLatencyDispatch& call, const LowLatencyLimits& limits,
                                 cudaStream_t stream) {
  call.send_blocks = dispatch_send::blocks_of(call.send, limits.multiprocessors);
  call.receive_blocks =
      dispatch_receive::divide(call.receive, call.send.group, limits.multiprocessors);
  const auto most = static_cast<std::uint32_t>(limits.multiprocessors);
  for_row_kind(call.send.quantize, [&](auto rows) {
    launch(low_latency::dispatch_kernel<rows.value>,
           std::min(call.send_blocks + call.receive_blocks, most),
           std::max(dispatch_send::threads_of(call.send.sizes), dispatch_receive::kThreads), 0,
           call, limits, stream);
  });
}

void load_low_latency_dispatch() {
  for_each_row_kind([](auto rows) { load_kernel(low_latency::dispatch_kernel<rows.value>); });
}

}  // namespace shoal::ep::cuda
