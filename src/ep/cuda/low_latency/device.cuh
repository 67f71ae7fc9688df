// SPDX-License-Identifier: Apache-2.0
// device.cuh: what the kernels of low-latency mode share: addresses of slots and answers, who
// answers a token, waits that mask members, rows that tell of themselves, grants, the end of a
// launch.
#pragma once

#include "ep/cuda/low_latency/kernels.cuh"
#include "ep/numeric/numeric.hpp"

namespace shoal::ep::cuda {

inline constexpr std::uint32_t kDispatchOperation =
    static_cast<std::uint32_t>(detail::Operation::dispatch);
inline constexpr std::uint32_t kCombineOperation =
    static_cast<std::uint32_t>(detail::Operation::combine);
inline constexpr unsigned kWarp = 0xffff'ffffu;

// Places.

/// Number of a slot in a member's slots.
__device__ inline std::size_t slot_index(const DeviceGroup& group, const Sizes& sizes,
                                         std::uint64_t epoch, std::int32_t source,
                                         std::int32_t token) {
  return ((epoch & 1) * group.ranks + source) * static_cast<std::size_t>(sizes.max_tokens) + token;
}
__device__ inline std::byte* slot_header(const DeviceGroup& group, std::int32_t member,
                                         std::size_t slot) {
  return group.block[member] + group.layout.slot_headers +
         slot * group.layout.packets * detail::kPacketBytes;
}
__device__ inline std::uint64_t* slot_counts(const DeviceGroup& group, std::int32_t member,
                                             std::uint64_t epoch, std::int32_t source) {
  return reinterpret_cast<std::uint64_t*>(group.block[member] + group.layout.slot_counts) +
         ((epoch & 1) * group.ranks + source) * static_cast<std::size_t>(group.local_experts);
}
__device__ inline std::uint64_t* slot_ready(const DeviceGroup& group, std::int32_t member,
                                            std::size_t slot) {
  return reinterpret_cast<std::uint64_t*>(group.block[member] + group.layout.slot_ready) + slot;
}
__device__ inline float* slot_weights(const DeviceGroup& group, std::int32_t member,
                                      std::size_t slot) {
  return reinterpret_cast<float*>(group.block[member] + group.layout.slot_weights) +
         slot * group.top_k;
}
__device__ inline std::byte* slot_row(const DeviceGroup& group, std::int32_t member,
                                      std::size_t slot) {
  return group.block[member] + group.layout.slots + slot * group.layout.slot_bytes;
}
__device__ inline std::uint64_t* slot_notice(const DeviceGroup& group, std::int32_t member,
                                             std::uint64_t epoch, std::int32_t source) {
  return reinterpret_cast<std::uint64_t*>(group.block[member] + group.layout.slot_notices +
                                          ((epoch & 1) * group.ranks + source) * detail::kLine);
}
__device__ inline std::uint64_t* answer_notice(const DeviceGroup& group, std::int32_t member,
                                               std::uint64_t epoch, std::int32_t source) {
  return slot_notice(group, member, epoch, source) + 1;
}
/// The weights of a source's tokens, [tokens][top_k], as a combine brings them: with the epoch in
/// one word, so that they need no signal.
__device__ inline std::uint64_t* combine_weights(const DeviceGroup& group, const Sizes& sizes,
                                                 std::int32_t member, std::uint64_t epoch,
                                                 std::int32_t source) {
  return reinterpret_cast<std::uint64_t*>(group.block[member] + group.layout.combine_weights) +
         slot_index(group, sizes, epoch, source, 0) * group.top_k;
}
__device__ inline std::uint64_t stamped_weight(float weight, std::uint64_t epoch) {
  return (epoch & 0xffff'ffffu) | std::uint64_t{__float_as_uint(weight)} << 32;
}
__device__ inline float weight_of(std::uint64_t stamped) {
  return __uint_as_float(static_cast<std::uint32_t>(stamped >> 32));
}
/// Which of its token's an answer is. `packed`: its lane, or for sums the place of the member.
/// `own`: its number among those of `member` to the token.
__device__ inline std::int32_t answer_slot(const DeviceGroup& group, std::int32_t member,
                                           std::int32_t packed, std::int32_t own) {
  const auto of_member = static_cast<std::int32_t>(group.layout.member_answers);
  return of_member == 0 ? packed : member * of_member + own;
}
/// Number of an answer in a member's answers; `slot` as answer_slot says.
__device__ inline std::size_t answer_index(const DeviceGroup& group, const Sizes& sizes,
                                           std::uint64_t epoch, std::int32_t token,
                                           std::int32_t slot) {
  return ((epoch & 1) * sizes.max_tokens + token) * group.layout.token_answers + slot;
}
__device__ inline std::uint64_t* answer_flag_at(const DeviceGroup& group, std::int32_t member,
                                                std::size_t answer) {
  return reinterpret_cast<std::uint64_t*>(group.block[member] + group.layout.answer_flags) + answer;
}
__device__ inline std::byte* answer_row(const DeviceGroup& group, std::int32_t member,
                                        std::size_t answer) {
  return group.block[member] + group.layout.answers + answer * group.layout.answer_bytes;
}

// Loads and stores.

__device__ inline std::uint32_t load_word(const void* at) {
  return __ldcg(static_cast<const unsigned int*>(at));
}
__device__ inline void store_relaxed(std::uint64_t* at, std::uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/// Packets are read and written as a whole (PTX: a relaxed access of type b128 is a single one).
__device__ inline void store_packet(std::byte* at, const SlotPacket& packet) {
  asm volatile(
      "{\n.reg .b128 packet;\nmov.b128 packet, {%1, %2};\nst.relaxed.sys.global.b128 [%0], packet;\n}\n" ::
          "l"(at),
      "l"(packet.low), "l"(packet.high)
      : "memory");
}
__device__ inline SlotPacket load_packet(const std::byte* at) {
  SlotPacket packet;
  asm volatile(
      "{\n.reg .b128 packet;\nld.relaxed.sys.global.b128 packet, [%2];\nmov.b128 {%0, %1}, packet;\n}\n"
      : "=l"(packet.low), "=l"(packet.high)
      : "l"(at)
      : "memory");
  return packet;
}

// Rows that tell of themselves (low_latency_kernels.cuh).

__device__ inline bool rows_tell(const DeviceGroup& group) {
  return group.mask_failed == 0;
}

__device__ inline bool is_written(const uint4& data) {
  return max(max(data.x, data.y), max(data.z, data.w)) != kSentinel;  // the largest of all words
}

/// Of all words of a row only two bfloat16 NaNs could look like kSentinel (float8 codes and sums
/// have one NaN each, which is another, and scales are finite): they become two other NaNs.
__device__ inline std::uint32_t told(std::uint32_t word) {
  return word == kSentinel ? kSentinel - 1 : word;
}
__device__ inline void store_row(uint4* at, const uint4& data) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(told(data.x)),
               "r"(told(data.y)), "r"(told(data.z)), "r"(told(data.w))
               : "memory");
}
__device__ inline void store_word(std::uint32_t* at, std::uint32_t word) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(told(word)) : "memory");
}

/// Every kernel starts so: the one before it on the stream has ended, and the next one may be set
/// up. A receive that is chained to its send begins while that is under way: what came before the
/// send has ended, because the send waited for it before it let the receive be set up. It ends only
/// after the send (end_chained).
__device__ inline void begin_kernel(bool chained = false) {
  if (!chained) await_previous_kernel();
  release_next_kernel();
}
__device__ inline void end_chained(bool chained) {
  if (chained) await_previous_kernel();
}

// Who answers a token.

/// As the handle has it; -1 where nothing has been written, because the group had failed.
__device__ inline std::int32_t known_expert(const DeviceGroup& group, std::int32_t expert) {
  return expert < group.experts ? expert : -1;
}

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

// Members that are left out.

__device__ inline bool is_masked(const DeviceGroup& group, std::int32_t member) {
  return group.mask_failed != 0 &&
         *static_cast<volatile std::uint32_t*>(&group.memory->masked[member]) != 0;
}
__device__ inline void mask(const DeviceGroup& group, std::int32_t member) {
  atomicExch(&group.memory->masked[member], 1u);
  group.report->masked[member] = 1;
  __threadfence_system();
}

/// How long a group that leaves members out waits for one of them. Who waits for a member that is
/// gone is late for the others, which would leave it out as well: so whoever waits tells the others
/// so now and then, and who has heard that of the member it waits for, while it waited, gives it as
/// long again. As often as there may be others that are gone.
class ScopedTimeout {
 public:
  __device__ ScopedTimeout(const DeviceGroup& group, std::int32_t member)
      : group_(group), member_(member), at_(clock_ns() + group.timeout_ns), heard_(hear()) {}

  __device__ bool is_over(std::uint32_t polls) {
    constexpr std::uint32_t kPollsPerWord = 1024;  // a millisecond or less
    if (group_.mask_failed != 0 && polls % kPollsPerWord == 0) tell_others();
    if (clock_ns() <= at_) return false;
    const std::uint32_t heard = hear();
    if (group_.mask_failed == 0 || heard == heard_ || given_ == group_.ranks - 2) return true;
    heard_ = heard;
    given_ = given_ + 1;
    at_ += group_.timeout_ns;
    return false;
  }

 private:
  /// At member `of`: changes while `owner` waits for another than `of`.
  __device__ std::uint64_t* word(std::int32_t of, std::int32_t owner) const {
    return signal_at(group_, of, group_.layout.failed, owner) + 1;
  }
  __device__ std::uint32_t hear() const {
    return static_cast<std::uint32_t>(load_relaxed(word(group_.me, member_)));
  }
  __device__ void tell_others() const {
    for (std::int32_t other = 0; other < group_.ranks; ++other)
      if (other != member_ && other != group_.me) store_relaxed(word(other, group_.me), clock_ns());
  }

  const DeviceGroup& group_;
  const std::int32_t member_;
  std::uint64_t at_;
  // In local memory: registers are for the row that its thread has in flight.
  volatile std::uint32_t heard_;
  volatile std::int32_t given_ = 0;
};

/// What to do about a wait for `member` that failed: the member is masked, or the group is given
/// up.
__device__ inline void wait_failed(const DeviceGroup& group, Fault fault, Phase phase,
                                   std::uint32_t operation, std::int32_t member,
                                   std::uint64_t epoch, std::uint64_t seen) {
  if (fault == Fault::none) return;
  if (group.mask_failed != 0) return mask(group, member);
  report_fault(group, fault, phase, operation, member, epoch, seen);
  // The waits of the others for this member end.
  for (std::int32_t other = 0; other < group.ranks; ++other)
    raise_signal(group, group.layout.failed, other, 1);
}

/// Waits until `ready`, `member` is masked, or the wait has failed; true in the first case.
/// Nanoseconds that it took are left in `waited`, 0 when it was ready at once.
template <typename Ready>
__device__ bool wait_or_mask(const DeviceGroup& group, std::int32_t member, Phase phase,
                             std::uint32_t operation, std::uint64_t epoch, Ready&& ready,
                             const std::uint64_t* word, std::uint64_t* waited) {
  if (ready()) return true;
  volatile std::uint64_t start = 0;  // in local memory, as what ScopedTimeout keeps
  if (waited != nullptr) start = clock_ns();
  bool left_out = false;
  Fault fault;
  const bool done = poll<ScopedTimeout>(
      group, member, [&] { return ready() || (left_out = is_masked(group, member)); }, fault);
  if (waited != nullptr) *waited = clock_ns() - start;
  if (!done)
    wait_failed(group, fault, phase, operation, member, epoch,
                static_cast<std::uint32_t>(load_relaxed(word)));
  return done && !left_out;
}

/// For the statistics: of the waits of a call for a member the longest one counts.
__device__ inline void note_wait(std::uint64_t* longest, std::int32_t member,
                                 std::uint64_t waited) {
  if (waited != 0)
    atomicMax(reinterpret_cast<unsigned long long*>(longest + member),
              static_cast<unsigned long long>(waited));
}

/// Until the signal of `member` here has reached `epoch`; false where it is left out.
__device__ inline bool wait_signal_or_mask(const DeviceGroup& group, std::size_t signals,
                                           std::int32_t member, std::uint64_t epoch, Phase phase,
                                           std::uint32_t operation) {
  if (is_masked(group, member)) return false;
  const std::uint64_t* const word = signal_at(group, group.me, signals, member);
  return wait_or_mask(
      group, member, phase, operation, epoch, [&] { return load_acquire(word) >= epoch; }, word,
      nullptr);
}

/// How far the epoch of a notice is ahead of `epoch`.
__device__ inline std::int32_t ahead_of(std::uint64_t word, std::uint64_t epoch) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(word) -
                                   static_cast<std::uint32_t>(epoch));
}
__device__ inline bool is_epoch(std::uint64_t word, std::uint64_t epoch) {
  return ahead_of(word, epoch) == 0;
}

// Chunks of rows that tell of themselves.

/// What a wait for rows is about: of which operation, and where it stands that members did not
/// agree on that one (then nobody waits for its rows).
struct RowsOf {
  Phase phase;
  std::uint32_t operation;
  std::uint64_t epoch;
  const std::uint64_t* dirty;    ///< [2]
  const std::uint64_t* notices;  ///< of its members, a line apart
};

__device__ inline RowsOf rows_of_slots(const DeviceGroup& group, Phase phase, std::uint64_t epoch) {
  return {phase, kDispatchOperation, epoch, group.memory->dirty_slots,
          slot_notice(group, group.me, epoch, 0)};
}
__device__ inline RowsOf rows_of_answers(const DeviceGroup& group, Phase phase,
                                         std::uint64_t epoch) {
  return {phase, kCombineOperation, epoch, group.memory->dirty_answers,
          answer_notice(group, group.me, epoch, 0)};
}

__device__ inline bool disagreed(const RowsOf& rows) {
  return load_relaxed(rows.dirty + (rows.epoch & 1)) == rows.epoch;
}

/// Whether the wait for rows of `member` has failed; reports it where nobody else has. Out of line,
/// and told nothing of the rows: they stay in registers.
__device__ __noinline__ inline bool gives_up(const DeviceGroup& group, const RowsOf& rows,
                                             std::int32_t member, std::uint64_t deadline) {
  if (aborted(group) || disagreed(rows)) return true;
  const bool failed = load_relaxed(signal_at(group, group.me, group.layout.failed, member)) != 0;
  if (!failed && clock_ns() <= deadline) return false;
  wait_failed(group, failed ? Fault::peer_failed : Fault::timeout, rows.phase, rows.operation,
              member, rows.epoch,
              static_cast<std::uint32_t>(
                  load_relaxed(rows.notices + member * (kLine / sizeof(std::uint64_t)))));
  return true;
}

/// Loads `data[i]` from at(i) for the bits of `wanted`, all of them at once, and where rows tell of
/// themselves waits until they have come and puts kSentinel in their place. member(i) sends them.
/// False when the wait failed.
template <int count, typename At, typename Member>
__device__ bool take(const DeviceGroup& group, const RowsOf& rows, std::uint32_t wanted,
                     uint4 (&data)[count], At&& at, Member&& member) {
#pragma unroll
  for (int i = 0; i < count; ++i)
    if (wanted >> i & 1) data[i] = load_fresh(at(i));
  if (!rows_tell(group)) return true;
  std::uint32_t missing = 0;
#pragma unroll
  for (int i = 0; i < count; ++i)
    if ((wanted >> i & 1) != 0 && !is_written(data[i])) missing |= 1u << i;
  if (missing != 0) {
    const std::uint64_t deadline = clock_ns() + group.timeout_ns;
    for (std::uint32_t polls = 1; missing != 0; ++polls) {
      __nanosleep(kPollNs);
#pragma unroll
      for (int i = 0; i < count; ++i) {
        if ((missing >> i & 1) == 0) continue;
        data[i] = load_fresh(at(i));
        if (is_written(data[i])) missing &= ~(1u << i);
      }
      if (polls % 64 == 0 && missing != 0 &&
          gives_up(group, rows, member(__ffs(missing) - 1), deadline))
        return false;
    }
  }
#pragma unroll
  for (int i = 0; i < count; ++i)
    if (wanted >> i & 1) *at(i) = uint4{kSentinel, kSentinel, kSentinel, kSentinel};
  return true;
}

// Grants.

/// What members have read of one kind of half, and what they did not agree on.
struct Reading {
  std::size_t signals;  ///< slots_read or answers_read
  const std::uint64_t* received;
  std::uint64_t* dirty;  ///< [2]: Memory::dirty_slots or dirty_answers
};
__device__ inline Reading slots_reading(const DeviceGroup& group) {
  return {group.layout.slots_read, &group.memory->slots_received, group.memory->dirty_slots};
}
__device__ inline Reading answers_reading(const DeviceGroup& group) {
  return {group.layout.answers_read, &group.memory->answers_received, group.memory->dirty_answers};
}

__device__ inline void fill_sentinel(std::byte* from, std::size_t bytes) {  // a warp's
  for (std::size_t at = lane_id() * sizeof(uint4); at < bytes; at += 32 * sizeof(uint4))
    *reinterpret_cast<uint4*>(from + at) = uint4{kSentinel, kSentinel, kSentinel, kSentinel};
}

/// Puts a half right that may hold words that nobody took. All that was sent into it is there once
/// every member has begun a later send.
template <typename Clear>
__device__ void clean(const DeviceGroup& group, const Reading& reading, std::uint64_t* dirty,
                      const RowsOf& send, Clear&& clear) {
  const std::uint64_t left = load_relaxed(dirty);
  if (left == 0 || left >= send.epoch) return;  // the send's own receive may run beside it
  bool all = true;
  for (auto member = static_cast<std::int32_t>(lane_id()); member < group.ranks; member += 32) {
    const std::uint64_t* const begun = signal_at(group, group.me, reading.signals, member) + 1;
    all = wait_or_mask(
              group, member, send.phase, send.operation, send.epoch,
              [&] { return load_acquire(begun) > left; }, begun, nullptr) &&
          all;
  }
  if (!__all_sync(kWarp, all)) return;
  clear(left);
  __syncwarp();
  __threadfence_system();
  if (lane_id() == 0) *dirty = 0;
  __syncwarp();
}

/// Tells all members that this send has begun, and grants what this member's receives have read.
/// What came before this launch on the stream has ended, so that one fence orders it for all; its
/// own receive may run beside it, and does not count. A warp of the first block of every send
/// calls, and waits for nothing before. clear(epoch) puts a half of `own` right.
template <typename Clear>
__device__ void begin_send(const DeviceGroup& group, const Reading& own, const Reading& other,
                           const RowsOf& send, Clear&& clear) {
  const auto tell = [&](std::size_t signals, std::size_t word, std::uint64_t value) {
    for (auto member = static_cast<std::int32_t>(lane_id()); member < group.ranks; member += 32)
      store_relaxed(signal_at(group, member, signals, group.me) + word, value);
  };
  __threadfence_system();
  tell(own.signals, 1, send.epoch);
  clean(group, own, own.dirty, send, clear);
  clean(group, own, own.dirty + 1, send, clear);
  tell(own.signals, 0, min(*own.received, send.epoch - 1));
  if (other.dirty[0] == 0 && other.dirty[1] == 0) tell(other.signals, 0, *other.received);
}

/// What a receive that does not lie directly behind its send grants when it ends: the next send may
/// be that of the use after next, which others would otherwise wait for. A lane calls for a member;
/// what the launch wrote lies before.
__device__ inline void grant_at_end(const DeviceGroup& group, const Reading& reading,
                                    std::int32_t member, std::uint64_t epoch) {
  if (reading.dirty[0] == 0 && reading.dirty[1] == 0)
    raise_signal(group, reading.signals, member, epoch);
}

// The end of a launch.

/// To be called by all threads behind a barrier of the block, before which they have read the
/// epoch: the number of blocks that have got there before (thread 0), for end_kernel.
__device__ inline std::uint32_t pass_epoch(const DeviceGroup& group, Kernel kernel, bool ordered) {
  if (ordered || threadIdx.x != 0) return 0;
  return atomicAdd(&group.memory->counters[static_cast<std::uint32_t>(kernel)].done, 1u);
}

/// Ends a block; in one of them `last` is called, by warp 0 or its first thread. All threads call.
/// With `ordered`, it is the block that ends last, and the reads and writes of all blocks lie
/// before; without, all blocks have read the epoch, and nobody waits.
template <typename Last>
__device__ void end_kernel(const DeviceGroup& group, Kernel kernel, bool ordered,
                           std::uint32_t passed, Last&& last) {
  Counters& counters = group.memory->counters[static_cast<std::uint32_t>(kernel)];
  std::uint32_t ends = threadIdx.x == 0 && passed == gridDim.x - 1 ? 1 : 0;
  if (ordered) {
    __syncthreads();
    if (threadIdx.x >= 32) return;
    if (lane_id() == 0) {
      __threadfence();
      ends = atomicAdd(&counters.done, 1u) == gridDim.x - 1 ? 1 : 0;
      __threadfence();
    }
    ends = __shfl_sync(kWarp, ends, 0);
    __syncwarp();
  }
  if (ends == 0) return;
  if (threadIdx.x == 0) counters = {};
  last();
}

/// A launch that may be set up before the kernel before it has ended (begin_kernel).
template <typename Params>
void launch(void (*kernel)(Params), std::uint32_t blocks, std::uint32_t threads,
            std::uint32_t shared_bytes, const Params& params, const Machine& machine,
            cudaStream_t stream) {
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
