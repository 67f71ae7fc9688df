// SPDX-License-Identifier: Apache-2.0
// probe.cu: whether a low-latency receive would wait. One block looks once at the signals of the
// receive and replies to the host.
//
// Moves nothing; the reply is one word in host memory. Waits for nothing. Memory order: relaxed
// loads suffice, because the receive itself acquires.
#include "ep/cuda/low_latency/device/topk_slots.cuh"
#include "ep/cuda/low_latency/device/waits.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr std::uint32_t kThreads = 256;

/// Receives wait neither for masked ranks nor for ranks that have given the group up.
__device__ bool is_awaited(const DeviceGroup& group, std::int32_t rank) {
  return !is_masked(group, rank) &&
         ptx::ld_relaxed_sys_global(signal_at(group, group.me, group.layout.failed, rank)) == 0;
}

__device__ bool slots_arrived(const LowLatencyProbe& call, std::uint64_t epoch,
                              std::int32_t source) {
  const DeviceGroup& group = call.group;
  if (!is_awaited(group, source)) return true;
  const std::uint64_t word =
      ptx::ld_relaxed_sys_global(dispatch_notice(group, group.me, epoch, source));
  if (ahead_of(word, epoch) != 0)
    return ahead_of(word, epoch) > 0;  // a later dispatch: this one has been read already
  const DispatchNoticeWord notice = DispatchNoticeWord::of(word);
  if (notice.masked) return true;
  bool arrived = true;
  for (auto token = static_cast<std::int32_t>(lane_id()); token < notice.tokens; token += 32) {
    const std::size_t slot = slot_index(group, call.sizes, epoch, source, token);
    bool here = true;
    bool has_row = false;
    for (std::uint32_t p = 0; p < group.layout.packets; ++p) {
      const SlotPacket packet =
          load_packet(slot_header(group, group.me, slot) + p * detail::kPacketBytes);
      here = here && ahead_of(packet.low, epoch) >= 0;  // as for the notice
      has_row = packet.has_row();
    }
    arrived = arrived && here &&
              (!has_row || ptx::ld_relaxed_sys_global(slot_ready(group, group.me, slot)) >= epoch);
  }
  return arrived;
}

template <int kPerLane>
__device__ bool combine_rows_arrived(const LowLatencyProbe& call, std::uint64_t epoch,
                                     std::int32_t token) {
  const DeviceGroup& group = call.group;
  std::int32_t rank[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const auto slot = static_cast<std::int32_t>(number_of_lane(i));
    rank[i] = slot < group.top_k
                  ? call.handle.ranks[static_cast<std::size_t>(token) * group.top_k + slot]
                  : -1;
  }
  const TopkSlots<kPerLane> slots = make_topk_slots(rank);
  bool arrived = true;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (rank[i] < 0 || !is_awaited(group, rank[i])) continue;
    const std::uint64_t said =
        ptx::ld_relaxed_sys_global(combine_notice(group, group.me, epoch, rank[i]));
    const bool sum = is_sums(call.form) && (said & CombineNoticeWord::kUnsummed) == 0;
    if (ahead_of(said, epoch) < 0) arrived = false;
    if (ahead_of(said, epoch) < 0 || (sum && !slots.last[i])) continue;
    const std::size_t index = combine_row_index(group, call.sizes, epoch, token, rank[i],
                                                static_cast<std::int32_t>(number_of_lane(i)),
                                                sum ? 0 : slots.index_of_rank[i]);
    arrived =
        ahead_of(ptx::ld_relaxed_sys_global(combine_flag_at(group, group.me, index)), epoch) >= 0 &&
        arrived;
  }
  return arrived;
}

namespace low_latency {

template <int kPerLane>
__global__ void __launch_bounds__(kThreads)
    probe_kernel(const __grid_constant__ LowLatencyProbe call) {
  const bool combine = call.pending.header != nullptr;
  const std::uint64_t serial = *static_cast<volatile std::uint64_t*>(
      combine ? &call.pending.header->serial : &call.handle.header->serial);
  __threadfence();
  const std::uint64_t epoch = *static_cast<volatile std::uint64_t*>(
      combine ? &call.pending.header->epoch : &call.handle.header->epoch);
  bool arrived = serial == call.serial;  // otherwise the send has not begun
  const auto warp = static_cast<std::int32_t>(threadIdx.x / 32),
             warps = static_cast<std::int32_t>(kThreads / 32);
  if (__syncthreads_and(arrived) != 0) {
    const std::int32_t parts = combine ? call.tokens : call.group.ranks;
    for (std::int32_t part = warp; part < parts; part += warps)
      arrived = (combine ? combine_rows_arrived<kPerLane>(call, epoch, part)
                         : slots_arrived(call, epoch, part)) &&
                arrived;
  }
  arrived = __syncthreads_and(arrived) != 0;
  if (threadIdx.x == 0) *call.reply = call.sequence * 2 + (arrived ? 1 : 0);
}

}  // namespace low_latency
}  // namespace

void launch_low_latency_probe(const LowLatencyProbe& call, cudaStream_t stream) {
  (call.group.top_k <= kOnePerLane
       ? low_latency::probe_kernel<1>
       : low_latency::probe_kernel<kMostPerLane>)<<<1, kThreads, 0, stream>>>(call);
}

void load_low_latency_probe(bool many_slots) {
  cudaFuncAttributes attributes{};
  (void)cudaFuncGetAttributes(&attributes, many_slots ? low_latency::probe_kernel<kMostPerLane>
                                                      : low_latency::probe_kernel<1>);
}

}  // namespace shoal::ep::cuda
