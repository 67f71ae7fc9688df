// SPDX-License-Identifier: Apache-2.0
// combine.cu: a low-latency combine of sums whose receive follows at once, in one kernel, as
// dispatch.cu has it for dispatches.
//
// The first blocks run combine_send.cuh, the last ones combine_receive.cuh. No block does both, so
// there are few tokens (joined.hpp): if blocks received after they had sent, 64 tokens would
// take longer than in two kernels. All blocks run at the same time, see there.
//
// Moves, waits, publishes, memory order: as there.
#include "ep/cuda/low_latency/receive/combine_receive.cuh"
#include "ep/cuda/low_latency/send/combine_send.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr std::uint32_t kThreads =
    std::max(combine_send::threads_of(CombineRowForm::sums), combine_receive::kThreads);

namespace low_latency {

__global__ void __launch_bounds__(kThreads, 1)
    combine_kernel(const __grid_constant__ LowLatencyCombine call) {
  begin_kernel();
  if (blockIdx.x < call.send_blocks)
    combine_send::send<CombineRowForm::sums, false, false>(call.send,
                                                           {blockIdx.x, call.send_blocks});
  else
    combine_receive::receive<CombineRowForm::sums, combine_receive::kFewAhead, false>(
        call.receive, {blockIdx.x - call.send_blocks, gridDim.x - call.send_blocks});
}

}  // namespace low_latency
}  // namespace

void launch_low_latency_combine(LowLatencyCombine& call, const LowLatencyLimits& limits,
                                cudaStream_t stream) {
  const std::int32_t most = limits.multiprocessors;
  call.send_blocks = combine_send::divide(call.send, most);
  launch(low_latency::combine_kernel,
         call.send_blocks + combine_receive::divide(call.receive, most, most).blocks, kThreads, 0,
         call, limits, stream);
}

void load_low_latency_combine() {
  load_kernel(low_latency::combine_kernel);
}

}  // namespace shoal::ep::cuda
