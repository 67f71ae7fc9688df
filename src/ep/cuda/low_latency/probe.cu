// SPDX-License-Identifier: Apache-2.0
// low_latency_probe: whether a receive would wait. One block looks once at what the receive waits
// for and tells the host; it waits for nobody.
#include "ep/cuda/low_latency/device.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr std::uint32_t kThreads = 256;

/// A member that is left out, or has given the group up, is not waited for.
__device__ bool counts(const DeviceGroup& group, std::int32_t member) {
  return !is_masked(group, member) &&
         load_relaxed(signal_at(group, group.me, group.layout.failed, member)) == 0;
}

__device__ bool slots_came(const Probe& call, std::uint64_t epoch, std::int32_t source) {
  const DeviceGroup& group = call.group;
  if (!counts(group, source)) return true;
  const std::uint64_t word = load_relaxed(slot_notice(group, group.me, epoch, source));
  if (ahead_of(word, epoch) != 0)
    return ahead_of(word, epoch) > 0;  // later: this has been read already
  const SlotNotice notice = SlotNotice::of(word);
  if (notice.left_out) return true;
  bool came = true;
  for (auto token = static_cast<std::int32_t>(lane_id()); token < notice.tokens; token += 32) {
    const std::size_t slot = slot_index(group, call.sizes, epoch, source, token);
    bool here = true;
    std::uint32_t place = 0;
    for (std::uint32_t p = 0; p < group.layout.packets; ++p) {
      const SlotPacket packet =
          load_packet(slot_header(group, group.me, slot) + p * detail::kPacketBytes);
      here = here && ahead_of(packet.low, epoch) >= 0;  // a later one: this has been read already
      place = packet.place();
    }
    came = came && here && (place == 0 || load_relaxed(slot_ready(group, group.me, slot)) >= epoch);
  }
  return came;
}

__device__ bool answers_came(const Probe& call, std::uint64_t epoch, std::int32_t token) {
  const DeviceGroup& group = call.group;
  const std::uint32_t me = lane_id();
  const bool in_row = me < static_cast<std::uint32_t>(group.top_k);
  const Lane lane =
      make_lane(in_row ? call.handle.topk[static_cast<std::size_t>(token) * group.top_k + me] : -1,
                group.local_experts);
  const bool sums = call.form == CombineRowForm::sums;
  if (!(sums ? lane.last : lane.member >= 0) || !counts(group, lane.member)) return true;
  const std::int32_t slot =
      sums ? answer_slot(group, lane.member, lane.place, 0)
           : answer_slot(group, lane.member, static_cast<std::int32_t>(me), lane.own);
  const std::size_t index = answer_index(group, call.sizes, epoch, token, slot);
  return ahead_of(load_relaxed(answer_flag_at(group, group.me, index)), epoch) >= 0;
}

__global__ void __launch_bounds__(kThreads) probe_kernel(const __grid_constant__ Probe call) {
  const bool combine = call.pending.header != nullptr;
  const std::uint64_t serial = *static_cast<volatile std::uint64_t*>(
      combine ? &call.pending.header->serial : &call.handle.header->serial);
  __threadfence();
  const std::uint64_t epoch = *static_cast<volatile std::uint64_t*>(
      combine ? &call.pending.header->epoch : &call.handle.header->epoch);
  bool came = serial == call.serial;  // else the send has not ended
  const auto warp = static_cast<std::int32_t>(threadIdx.x / 32),
             warps = static_cast<std::int32_t>(kThreads / 32);
  if (__syncthreads_and(came) != 0) {
    const std::int32_t parts = combine ? call.tokens : call.group.ranks;
    for (std::int32_t part = warp; part < parts; part += warps)
      came = (combine ? answers_came(call, epoch, part) : slots_came(call, epoch, part)) && came;
  }
  came = __syncthreads_and(came) != 0;
  if (threadIdx.x == 0) *call.answer = call.sequence * 2 + (came ? 1 : 0);
}

}  // namespace

void launch_probe(const Probe& call, cudaStream_t stream) {
  probe_kernel<<<1, kThreads, 0, stream>>>(call);
}

void load_probe() {
  cudaFuncAttributes attributes{};
  (void)cudaFuncGetAttributes(&attributes, probe_kernel);
}

}  // namespace shoal::ep::cuda
