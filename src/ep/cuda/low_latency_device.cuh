// low_latency_device.cuh: what the kernels of low-latency mode share: addresses of slots and answers, who answers a
// token, waits that mask members, the end of a launch.
#pragma once

#include "ep/cuda/low_latency_kernels.cuh"
#include "ep/numeric/numeric.hpp"

namespace shoal::ep::cuda {

inline constexpr std::uint32_t kDispatchOperation = static_cast<std::uint32_t>(detail::Operation::dispatch);
inline constexpr std::uint32_t kCombineOperation = static_cast<std::uint32_t>(detail::Operation::combine);
inline constexpr unsigned kWarp = 0xffff'ffffu;

// --- places

/// Number of a slot in a member's slots.
__device__ inline std::size_t slot_index(const DeviceGroup& group, const Sizes& sizes, std::uint64_t epoch,
                                         std::int32_t source, std::int32_t token) {
  return ((epoch & 1) * group.ranks + source) * static_cast<std::size_t>(sizes.max_tokens) + token;
}
__device__ inline std::byte* slot_header(const DeviceGroup& group, std::int32_t member, std::size_t slot) {
  return group.block[member] + group.layout.slot_headers + slot * group.layout.packets * detail::kPacketBytes;
}
__device__ inline std::uint64_t* slot_ready(const DeviceGroup& group, std::int32_t member, std::size_t slot) {
  return reinterpret_cast<std::uint64_t*>(group.block[member] + group.layout.slot_ready) + slot;
}
__device__ inline float* slot_weights(const DeviceGroup& group, std::int32_t member, std::size_t slot) {
  return reinterpret_cast<float*>(group.block[member] + group.layout.slot_weights) + slot * group.top_k;
}
__device__ inline std::byte* slot_row(const DeviceGroup& group, std::int32_t member, std::size_t slot) {
  return group.block[member] + group.layout.slots + slot * group.layout.slot_bytes;
}
__device__ inline std::uint64_t* slot_notice(const DeviceGroup& group, std::int32_t member, std::uint64_t epoch,
                                             std::int32_t source) {
  return reinterpret_cast<std::uint64_t*>(group.block[member] + group.layout.slot_notices +
                                          ((epoch & 1) * group.ranks + source) * detail::kLine);
}
__device__ inline std::uint64_t* answer_notice(const DeviceGroup& group, std::int32_t member, std::uint64_t epoch,
                                               std::int32_t source) {
  return slot_notice(group, member, epoch, source) + 1;
}
__device__ inline float* combine_weights(const DeviceGroup& group, const Sizes& sizes, std::int32_t member,
                                         std::uint64_t epoch, std::int32_t source) {
  return reinterpret_cast<float*>(group.block[member] + group.layout.combine_weights) +
         slot_index(group, sizes, epoch, source, 0) * group.top_k;
}
/// Which of its token's an answer is. `packed`: its lane, or for sums the place of the member. `own`: its number among
/// those of `member` to the token.
__device__ inline std::int32_t answer_slot(const DeviceGroup& group, std::int32_t member, std::int32_t packed,
                                           std::int32_t own) {
  const auto of_member = static_cast<std::int32_t>(group.layout.member_answers);
  return of_member == 0 ? packed : member * of_member + own;
}
/// Number of an answer in a member's answers; `slot` as answer_slot says.
__device__ inline std::size_t answer_index(const DeviceGroup& group, const Sizes& sizes, std::uint64_t epoch,
                                           std::int32_t token, std::int32_t slot) {
  return ((epoch & 1) * sizes.max_tokens + token) * group.layout.token_answers + slot;
}
__device__ inline std::uint64_t* answer_flag_at(const DeviceGroup& group, std::int32_t member, std::size_t answer) {
  return reinterpret_cast<std::uint64_t*>(group.block[member] + group.layout.answer_flags) + answer;
}
__device__ inline std::byte* answer_row(const DeviceGroup& group, std::int32_t member, std::size_t answer) {
  return group.block[member] + group.layout.answers + answer * group.layout.answer_bytes;
}

// --- loads and stores

/// From the second-level cache: rows that other GPUs wrote must not come out of the first.
__device__ inline uint4 load_row(const void* at) {
  return __ldcg(static_cast<const uint4*>(at));
}
__device__ inline std::uint32_t load_word(const void* at) {
  return __ldcg(static_cast<const unsigned int*>(at));
}

__device__ inline void store_relaxed(std::uint64_t* at, std::uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/// Packets are read and written as a whole (PTX: a relaxed access of type b128 is a single one).
__device__ inline void store_packet(std::byte* at, const SlotPacket& packet) {
  asm volatile(
      "{\n.reg .b128 packet;\nmov.b128 packet, {%1, %2};\nst.relaxed.sys.global.b128 [%0], packet;\n}\n" ::"l"(at),
      "l"(packet.low), "l"(packet.high)
      : "memory");
}
__device__ inline SlotPacket load_packet(const std::byte* at) {
  SlotPacket packet;
  asm volatile("{\n.reg .b128 packet;\nld.relaxed.sys.global.b128 packet, [%2];\nmov.b128 {%0, %1}, packet;\n}\n"
               : "=l"(packet.low), "=l"(packet.high)
               : "l"(at)
               : "memory");
  return packet;
}

/// Every kernel starts so: the one before it on the stream has ended, and the next one may be set up. A receive that is
/// chained to its send begins while that is under way: what came before the send has ended, because the send waited for
/// it before it let the receive be set up. It ends only after the send (end_chained).
__device__ inline void begin_kernel(bool chained = false) {
  if (!chained) await_previous_kernel();
  release_next_kernel();
}
__device__ inline void end_chained(bool chained) {
  if (chained) await_previous_kernel();
}

// --- who answers a token

/// What a lane of a warp knows of the top-k lane of its number.
struct Lane {
  std::int32_t expert, member;  ///< -1: none
  bool last;                    ///< the last lane that asks for its member
  std::int32_t place;           ///< where `last`: the member's place among those that answer
  std::int32_t own;             ///< its number among the lanes of its member
  std::uint32_t lasts;          ///< of the warp: lanes with `last`, ordered by place
};
/// All lanes of the warp call.
__device__ inline Lane make_lane(std::int32_t expert, std::int32_t local_experts) {
  const std::uint32_t me = lane_id();
  Lane lane;
  lane.expert = expert;
  lane.member = expert >= 0 ? expert / local_experts : -1;
  const std::uint32_t same = __match_any_sync(kWarp, lane.member);
  lane.last = expert >= 0 && same >> me == 1;
  lane.lasts = __ballot_sync(kWarp, lane.last);
  lane.place = __popc(lane.lasts & ((1u << me) - 1));
  lane.own = __popc(same & ((1u << me) - 1));
  return lane;
}

// --- members that are left out

__device__ inline bool is_masked(const DeviceGroup& group, std::int32_t member) {
  return group.mask_failed != 0 && *static_cast<volatile std::uint32_t*>(&group.memory->masked[member]) != 0;
}
__device__ inline void mask(const DeviceGroup& group, std::int32_t member) {
  atomicExch(&group.memory->masked[member], 1u);
  group.report->masked[member] = 1;
  __threadfence_system();
}

/// What to do about a wait for `member` that failed: the member is masked, or the group is given up.
__device__ inline void wait_failed(const DeviceGroup& group, Fault fault, Phase phase, std::uint32_t operation,
                                   std::int32_t member, std::uint64_t epoch, std::uint64_t seen) {
  if (fault == Fault::none) return;
  if (group.mask_failed != 0)
    mask(group, member);
  else
    report_fault(group, fault, phase, operation, member, epoch, seen);
}

/// Waits until `ready`, `member` is masked, or the wait has failed; true in the first case. Nanoseconds that it took
/// are left in `waited`, 0 when it was ready at once.
template <typename Ready>
__device__ bool wait_or_mask(const DeviceGroup& group, std::int32_t member, Phase phase, std::uint32_t operation,
                             std::uint64_t epoch, Ready&& ready, const std::uint64_t* word, std::uint64_t* waited) {
  if (ready()) return true;
  const std::uint64_t start = waited != nullptr ? clock_ns() : 0;
  bool left_out = false;
  Fault fault;
  const bool done = poll(group, member, [&] { return ready() || (left_out = is_masked(group, member)); }, fault);
  if (waited != nullptr) *waited = clock_ns() - start;
  if (!done) wait_failed(group, fault, phase, operation, member, epoch, static_cast<std::uint32_t>(load_relaxed(word)));
  return done && !left_out;
}

/// Until the signal of `member` here has reached `epoch`; false where it is left out.
__device__ inline bool wait_signal_or_mask(const DeviceGroup& group, std::size_t signals, std::int32_t member,
                                           std::uint64_t epoch, Phase phase, std::uint32_t operation) {
  if (is_masked(group, member)) return false;
  const std::uint64_t* const word = signal_at(group, group.me, signals, member);
  return wait_or_mask(
      group, member, phase, operation, epoch, [&] { return load_acquire(word) >= epoch; }, word, nullptr);
}

/// How far the epoch of a notice is ahead of `epoch`.
__device__ inline std::int32_t ahead_of(std::uint64_t word, std::uint64_t epoch) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(word) - static_cast<std::uint32_t>(epoch));
}
__device__ inline bool is_epoch(std::uint64_t word, std::uint64_t epoch) {
  return ahead_of(word, epoch) == 0;
}

// --- the end of a launch

/// Ends a block; in the one that ends last, warp 0 calls `last`. All threads call. With `ordered`, the reads and writes
/// of all blocks lie before; without, no more than that all of them have read the epoch.
template <bool ordered = true, typename Last>
__device__ void end_kernel(const DeviceGroup& group, Kernel kernel, Last&& last) {
  __syncthreads();
  if (threadIdx.x >= 32) return;
  std::uint32_t ends = 0;
  if (lane_id() == 0) {
    Counters& counters = group.memory->counters[static_cast<std::uint32_t>(kernel)];
    if (ordered) __threadfence();
    ends = atomicAdd(&counters.done, 1u) == gridDim.x - 1 ? 1 : 0;
    if (ordered) __threadfence();
    if (ends != 0) counters = {};
  }
  ends = __shfl_sync(kWarp, ends, 0);
  __syncwarp();
  if (ends == 0) return;
  last();
  // A failed group tells the others, whose waits for this member end.
  if (aborted(group))
    for (auto member = static_cast<std::int32_t>(lane_id()); member < group.ranks; member += 32)
      raise_signal(group, group.layout.failed, member, 1);
}

/// A launch that may be set up before the kernel before it has ended (begin_kernel).
template <typename Params>
void launch(void (*kernel)(Params), std::uint32_t blocks, std::uint32_t threads, std::uint32_t shared_bytes,
            const Params& params, const Machine& machine, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = machine.dependent_launch ? 1 : 0;
  (void)cudaLaunchKernelEx(&config, kernel, params);  // errors: CudaGroup::end
}

}  // namespace shoal::ep::cuda
