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

template <bool kParted>
__global__ void __launch_bounds__(kThreads, 1)
    combine_kernel(const __grid_constant__ LowLatencyCombine call) {
  begin_kernel();
  if (blockIdx.x < call.send_blocks)
    combine_send::send<CombineRowForm::sums, false, false, kParted, 1>(
        call.send, {blockIdx.x, call.send_blocks});
  else
    combine_receive::receive<CombineRowForm::sums, combine_receive::kFewAhead, false, 1>(
        call.receive, {blockIdx.x - call.send_blocks, gridDim.x - call.send_blocks});
}

}  // namespace low_latency
}  // namespace

namespace {

/// Parts of a row, at most as many as its loads by `threads` threads need and as blocks are left,
/// for `rows` rows.
std::uint32_t parts_of(const LowLatencySizes& sizes, std::uint32_t threads, std::int64_t rows,
                       std::int64_t blocks) {
  const std::uint32_t chunks = static_cast<std::uint32_t>(sizes.hidden) / 8;
  std::uint32_t parts = (chunks + threads - 1) / threads;
  while (parts > 1 && parts * rows > blocks) --parts;
  return std::max(parts, 1u);
}

}  // namespace

void launch_low_latency_combine(LowLatencyCombine& call, const LowLatencyLimits& limits,
                                cudaStream_t stream) {
  const std::int32_t most = limits.multiprocessors;
  combine_send::divide(call.send, most);
  std::int64_t receive_blocks = combine_receive::divide(call.receive, most, most).blocks;
  // SMs that are left divide rows: a thread then waits for one load of each in place of several.
  const std::int64_t pairs = combine_send::expected_pairs(call.send), tokens = call.receive.tokens;
  call.send.parts =
      parts_of(call.send.sizes, combine_send::kThreads, pairs, most - 1 - receive_blocks);
  if (call.receive.wait_ns == nullptr)  // with statistics a block has whole tokens
    call.receive.parts = parts_of(call.receive.sizes, combine_receive::kThreads, tokens,
                                  most - 2 - pairs * call.send.parts);
  receive_blocks = tokens * call.receive.parts + 1;
  // All other SMs send: ranks with more tokens than this one have more pairs here than expected.
  call.send_blocks = static_cast<std::uint32_t>(
      std::min(most - receive_blocks, combine_send::most_pairs(call.send) * call.send.parts + 1));
  launch(
      call.send.parts > 1 ? low_latency::combine_kernel<true> : low_latency::combine_kernel<false>,
      call.send_blocks + static_cast<std::uint32_t>(receive_blocks), kThreads, 0, call, limits,
      stream);
}

void load_low_latency_combine() {
  load_kernel(low_latency::combine_kernel<true>);
  load_kernel(low_latency::combine_kernel<false>);
}

}  // namespace shoal::ep::cuda
