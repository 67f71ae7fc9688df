// SPDX-License-Identifier: Apache-2.0
// wait_arrival.cu: holds a low-latency receive until the network has delivered the rows of all
// remote ranks. One block, a thread for each rank.
//
// Moves nothing. Waits for the notices of remote ranks, which arrive after their rows, or, before a
// send that sums, for the signal that follows their weights. Groups that mask ranks wait for all
// ranks here, and before each send for their grants: while this rank waits, the threads after those
// that wait tell remote ranks so (ExtendedDeadline), which other kernels cannot. Publishes nothing
// else. Memory order: notices are acquired at system scope; the receive follows on the stream.
//
// Its waits, and the time since it began, count as those of the kernel that follows.
#include "ep/cuda/low_latency/device/launch.cuh"
#include "ep/cuda/low_latency/internode/forward.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr std::uint32_t kThreads = 2 * kMaxDeviceRanks;

__device__ bool is_remote(const InternodeRanks& remote, std::int32_t rank) {
  for (std::int32_t i = 0; i < remote.count; ++i)
    if (remote.rank[i] == rank) return true;
  return false;
}

/// The launch that waits here, before it begins.
struct WaitingLaunch {
  KernelKind kind;
  std::uint64_t epoch;
};
__device__ WaitingLaunch waiting_launch(const LowLatencyWaitArrival& call) {
  const GroupMemory& memory = *call.group.memory;
  switch (call.what) {
    case Arrival::dispatch_grants:
      return {KernelKind::low_latency_dispatch_send, memory.dispatches_sent + 1};
    case Arrival::dispatch:
      return {KernelKind::low_latency_dispatch_receive, memory.dispatches_received + 1};
    case Arrival::combine:
      return {KernelKind::low_latency_combine_receive, memory.combines_received + 1};
    default:
      return {KernelKind::low_latency_combine_send, memory.combines_sent + 1};
  }
}

/// True if the time of a wait is wanted.
__device__ bool measures(const LowLatencyWaitArrival& call) {
  return call.longest_wait != nullptr || call.group.record != nullptr;
}
__device__ void note_waited(const LowLatencyWaitArrival& call, const WaitingLaunch& launch,
                            std::int32_t rank, std::uint64_t waited) {
  if (call.longest_wait != nullptr) note_wait(call.longest_wait, rank, waited);
  count_first_wait(call.group, launch.kind, launch.epoch, rank, waited);
}

/// Waits for the notice of a rank.
__device__ void wait_notice(const LowLatencyWaitArrival& call, const WaitingLaunch& launch,
                            std::int32_t rank) {
  const DeviceGroup& group = call.group;
  const bool dispatch = call.what == Arrival::dispatch;
  const std::uint64_t epoch = launch.epoch;
  if (is_masked(group, rank)) return;
  const std::uint64_t* const notice = dispatch ? dispatch_notice(group, group.me, epoch, rank)
                                               : combine_notice(group, group.me, epoch, rank);
  std::uint64_t waited = 0;
  wait_or_mask(
      group, rank,
      dispatch ? Phase::low_latency_dispatch_receive : Phase::low_latency_combine_receive,
      dispatch ? kDispatchOperation : kCombineOperation, epoch,
      [&] { return ahead_of(ptx::ld_acquire_sys_global(notice), epoch) >= 0; }, notice,
      measures(call) ? &waited : nullptr);
  note_waited(call, launch, rank, waited);
}

/// Waits for the weights of a rank. One that combines in another form sends none; its notice ends
/// the wait, and comes after weights of the same form.
__device__ void wait_weights(const LowLatencyWaitArrival& call, const WaitingLaunch& launch,
                             std::int32_t rank) {
  const DeviceGroup& group = call.group;
  const std::uint64_t epoch = launch.epoch;
  const std::uint64_t* const sent = weights_sent(group, group.me, rank);
  const std::uint64_t* const notice = combine_notice(group, group.me, epoch, rank);
  std::uint64_t waited = 0;
  wait_or_mask(
      group, rank, Phase::low_latency_combine_weights, kCombineOperation, epoch,
      [&] {
        return ptx::ld_acquire_sys_global(sent) >= epoch ||
               ahead_of(ptx::ld_acquire_sys_global(notice), epoch) >= 0;
      },
      sent, measures(call) ? &waited : nullptr);
  note_waited(call, launch, rank, waited);
}

/// Waits for the grants of a rank that the next send needs.
__device__ void wait_grants(const LowLatencyWaitArrival& call, const WaitingLaunch& launch,
                            std::int32_t rank) {
  const DeviceGroup& group = call.group;
  const bool dispatch = call.what == Arrival::dispatch_grants;
  if (launch.epoch <= 2) return;
  std::uint64_t waited = 0;
  wait_signal_or_mask(
      group, dispatch ? group.layout.dispatch_read : group.layout.combine_read, rank,
      launch.epoch - 2,
      dispatch ? Phase::low_latency_dispatch_grant : Phase::low_latency_combine_grant,
      dispatch ? kDispatchOperation : kCombineOperation,
      group.record != nullptr ? &waited : nullptr);
  count_first_wait(group, launch.kind, launch.epoch, rank, waited);
}

namespace low_latency {

template <class Network>
__global__ void __launch_bounds__(kThreads, 1)
    wait_arrival_kernel(const __grid_constant__ LowLatencyWaitArrival call) {
  begin_kernel();
  __shared__ std::uint32_t waiting;
  const DeviceGroup& group = call.group;
  const auto me = static_cast<std::int32_t>(threadIdx.x);
  const WaitingLaunch launch = waiting_launch(call);
  if (me == 0) {
    waiting = static_cast<std::uint32_t>(group.ranks);
    note_front(group, launch.kind, launch.epoch);
  }
  __syncthreads();
  if (me < group.ranks) {
    if (group.mask_failed != 0 || is_remote(call.remote, me)) {
      if (call.what == Arrival::dispatch || call.what == Arrival::combine)
        wait_notice(call, launch, me);
      else if (call.what == Arrival::combine_weights)
        wait_weights(call, launch, me);
      else
        wait_grants(call, launch, me);
    }
    atomicAdd(&waiting, ~0u);
    return;
  }
  const std::int32_t index = me - kMaxDeviceRanks;
  if (group.mask_failed == 0 || index < 0 || index >= call.remote.count) return;
  Outbox<Network> outbox(group, call.remote, index);
  while (*static_cast<volatile std::uint32_t*>(&waiting) != 0) {
    outbox.signal_change(signal_at(group, outbox.rank(), group.layout.failed, group.me) + 1);
    __nanosleep(1000);
  }
}

}  // namespace low_latency
}  // namespace

void launch_low_latency_wait_arrival(const LowLatencyWaitArrival& call,
                                     const LowLatencyLimits& limits, cudaStream_t stream) {
  launch(call.remote.path == NetworkPath::nic ? low_latency::wait_arrival_kernel<ByNic>
                                              : low_latency::wait_arrival_kernel<ByProxy>,
         1, kThreads, 0, call, limits, stream);
}

void load_low_latency_wait_arrival() {
  load_kernel(low_latency::wait_arrival_kernel<ByProxy>);
  load_kernel(low_latency::wait_arrival_kernel<ByNic>);
}

}  // namespace shoal::ep::cuda
