// SPDX-License-Identifier: Apache-2.0
// low_latency_dispatch_receive: from the slots of all sources to the rows of each local expert,
// ordered by source, then token.
//
// Each slot is read from this GPU's own memory once and written once for each of its experts here.
// A warp takes a piece of a row: its header says the number of the row among those of its source,
// what earlier sources have for the expert comes before, so that no warp waits for another. The
// first block describes the result and has no rows where others can take them.
//
// Waits: the header of each slot, the counts of the sources before it, then the words of its row
// (low_latency_kernels.cuh: rows tell of themselves), or in groups that leave members out its ready
// word (acquire at system scope). The half is granted by the next send, or at the end where the
// receive does not lie behind its own.
//
// Short on purpose: instructions that are not in an SM's cache when a warp gets to them cost more
// than what they do. What is rarely waited for is waited for out of line, and loops are unrolled
// where that keeps loads in flight.
#include "ep/cuda/low_latency/device.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr std::uint32_t kThreads = 384, kWarps = kThreads / 32;
static_assert(kThreads >= kMaxDeviceRanks);
/// 16-byte chunks of a row that a warp copies at a time, as many a lane in flight.
constexpr int kAhead = 8;
constexpr std::uint32_t kPieceChunks = kAhead * 32;

/// Where a wait stands.
struct Wait {
  const SlotsReceive* call;
  std::uint64_t epoch;
  std::int32_t source;
};

/// Until ready() or the notice of the source says that it will not be: false then, and where the
/// wait fails.
template <typename Ready>
__device__ bool wait_for(const Wait& wait, Ready&& ready) {
  const DeviceGroup& group = wait.call->group;
  const std::uint64_t* const notice = slot_notice(group, group.me, wait.epoch, wait.source);
  if (is_masked(group, wait.source)) return false;
  std::uint64_t said = 0, waited = 0;
  bool here = false, left_out = false;
  const bool came = wait_or_mask(
      group, wait.source, Phase::slots, kDispatchOperation, wait.epoch,
      [&] {
        said = load_relaxed(notice);
        if ((here = ready(said))) return true;
        // It is told so, or finds a later notice: the source did not wait for this member.
        return left_out = ahead_of(said, wait.epoch) > 0 ||
                          (is_epoch(said, wait.epoch) && SlotNotice::of(said).left_out);
      },
      notice, wait.call->wait_ns != nullptr ? &waited : nullptr);
  note_wait(wait.call->longest_wait, wait.source, waited);
  if (left_out)
    wait_failed(group, Fault::peer_failed, Phase::slots, kDispatchOperation, wait.source,
                wait.epoch, static_cast<std::uint32_t>(said));
  return came && here;
}

/// Until the header of a slot is there; false where it will not come. The lanes of a warp have a
/// packet each, or none.
__device__ __noinline__ bool wait_header(const Wait& wait, std::int32_t token,
                                         const std::byte* packet) {
  bool beyond = false;
  return wait_for(wait,
                  [&](std::uint64_t said) {
                    if (packet == nullptr || is_epoch(load_packet(packet).low, wait.epoch))
                      return true;
                    return beyond = is_epoch(said, wait.epoch) && !SlotNotice::of(said).left_out &&
                                    token >= SlotNotice::of(said).tokens;
                  }) &&
         !beyond;
}

/// The rows of a source for an expert; 0 where it is left out.
__device__ __noinline__ std::uint32_t wait_count(const Wait& wait, const std::uint64_t* at) {
  std::uint64_t word = 0;
  const bool came =
      wait_for(wait, [&](std::uint64_t) { return is_epoch(word = load_relaxed(at), wait.epoch); });
  return came ? static_cast<std::uint32_t>(word >> 32) : 0;
}

/// How many tokens a source sends; 0 where it is left out.
__device__ __noinline__ std::int32_t wait_notice(const Wait& wait) {
  std::int32_t tokens = 0;
  wait_for(wait, [&](std::uint64_t said) {
    if (!is_epoch(said, wait.epoch) || SlotNotice::of(said).left_out) return false;
    tokens = SlotNotice::of(said).tokens;
    return true;
  });
  return tokens;
}

/// Until the row of a slot is there, where it has a ready word.
__device__ __noinline__ bool wait_ready(const Wait& wait, const std::uint64_t* word) {
  return wait_for(wait, [&](std::uint64_t) { return load_acquire(word) >= wait.epoch; });
}

/// A word of a row that was not there at the first look.
__device__ __noinline__ std::uint32_t wait_word(const Wait& wait, const RowsOf& rows,
                                                const std::uint32_t* at) {
  std::uint32_t word = kSentinel;
  wait_for(wait,
           [&](std::uint64_t) { return (word = load_fresh(at)) != kSentinel || disagreed(rows); });
  return word;
}

class Receiver {
 public:
  /// A barrier of the block has to follow.
  __device__ Receiver(const SlotsReceive& call, bool* left_out)
      : call_(call),
        group_(call.group),
        left_out_(left_out),
        epoch_(call.group.memory->slots_received + 1),
        slots_(static_cast<std::uint32_t>(call.group.ranks) *
               static_cast<std::uint32_t>(call.sizes.max_tokens)) {
    const auto me = static_cast<std::int32_t>(threadIdx.x);
    if (me < group_.ranks) left_out[me] = is_masked(group_, me);
  }

  __device__ void run() const {
    if (blockIdx.x == 0) describe();
    if (gridDim.x > 1 && blockIdx.x == 0) return;
    // Slots in use are the first ones of each source, so that neighbours go to different blocks.
    const std::uint32_t blocks = max(gridDim.x, 2u) - 1,
                        block = gridDim.x == 1 ? 0 : blockIdx.x - 1;
    const std::uint32_t units = slots_ * call_.pieces;
#pragma unroll 1
    for (std::uint32_t unit = threadIdx.x / 32 * blocks + block; unit < units;
         unit += kWarps * blocks)
      copy(call_.by_slots.remainder(unit), call_.by_slots.quotient(unit));
  }

  __device__ void pass() { passed_ = pass_epoch(group_, Kernel::slots_receive, ordered()); }

  __device__ void end() const {
    end_kernel(group_, Kernel::slots_receive, ordered(), passed_, [&] {
      for (auto member = static_cast<std::int32_t>(lane_id()); member < group_.ranks;
           member += 32) {
        if (call_.grants != 0) grant_at_end(group_, slots_reading(group_), member, epoch_);
        if (call_.wait_ns == nullptr) continue;
        call_.wait_ns[member] += static_cast<std::int64_t>(call_.longest_wait[member]);
        call_.longest_wait[member] = 0;
      }
      if (lane_id() == 0) group_.memory->slots_received = epoch_;
    });
  }

 private:
  __device__ bool ordered() const { return call_.grants != 0 || call_.wait_ns != nullptr; }
  __device__ Wait wait_of(std::int32_t source) const { return {&call_, epoch_, source}; }
  __device__ RowsOf about_rows() const { return rows_of_slots(group_, Phase::slots, epoch_); }
  __device__ bool quantized() const {
    return call_.quantize != static_cast<std::uint32_t>(Quantize::none);
  }

  // What is there once for a result.

  __device__ void describe() const {
    __shared__ std::int32_t most_tokens;
    const auto me = static_cast<std::int32_t>(threadIdx.x);
    if (me == 0) most_tokens = 0;
    __syncthreads();
    if (me < group_.ranks) {
      atomicMax(&most_tokens, wait_notice(wait_of(me)));
      check_agreement(me);
    }
#pragma unroll 1
    for (std::int32_t item = me; item < group_.local_experts * group_.ranks; item += kThreads) {
      const std::int32_t expert = item / group_.ranks, source = item % group_.ranks;
      const std::uint32_t before = rows_of(expert, 0, source),
                          here = rows_of(expert, source, source + 1);
      call_.layout[item] = static_cast<std::int64_t>(before) << 32 | here;
      if (source != group_.ranks - 1) continue;
      call_.counts[expert] = static_cast<std::int32_t>(before + here);
      if (call_.expert_counts != nullptr)
        call_.expert_counts[expert] += static_cast<std::int32_t>(before + here);
    }
    __syncthreads();
    if (me == 0) call_.handle.header->pairs = most_tokens * group_.ranks;
  }

  /// Where rows tell of themselves nobody may go on waiting for, or leave behind, those of a member
  /// that sends others.
  __device__ void check_agreement(std::int32_t source) const {
    const std::uint64_t word = load_relaxed(slot_notice(group_, group_.me, epoch_, source));
    if (!is_epoch(word, epoch_) || is_masked(group_, source)) return;
    const SlotNotice said = SlotNotice::of(word);
    if (said.quantize == call_.quantize && said.has_weights == (call_.has_weights != 0)) return;
    if (rows_tell(group_)) group_.memory->dirty_slots[epoch_ & 1] = epoch_;
    report_fault(group_, Fault::mismatch, Phase::slots, kDispatchOperation, source, epoch_, word, 0,
                 0, 0, false);
  }

  /// The rows that sources `first` .. `last - 1` have for a local expert.
  __device__ std::uint32_t rows_of(std::int32_t expert, std::int32_t first,
                                   std::int32_t last) const {
    constexpr int kInFlight = 8;
    std::uint32_t rows = 0;
#pragma unroll 1
    for (; first < last; first += kInFlight) {
      std::uint64_t words[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        words[i] = epoch_ & 0xffff'ffffu;
        if (first + i < last && !left_out_[first + i])
          words[i] = load_relaxed(slot_counts(group_, group_.me, epoch_, first + i) + expert);
      }
      std::uint32_t missing = 0;
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (is_epoch(words[i], epoch_))
          rows += static_cast<std::uint32_t>(words[i] >> 32);
        else
          missing |= 1u << i;
      }
#pragma unroll 1
      for (; missing != 0; missing &= missing - 1) {
        const std::int32_t source = first + __ffs(missing) - 1;
        rows +=
            wait_count(wait_of(source), slot_counts(group_, group_.me, epoch_, source) + expert);
      }
    }
    return rows;
  }

  // Rows.

  /// A row as the lanes of its warp know it: a lane is a top-k lane.
  struct Row {
    std::int32_t source, token;
    std::size_t slot;     ///< slot_index
    std::uint32_t place;  ///< 1 + this member's among those that answer; 0: not one of them
    std::int32_t expert;  ///< local; -1: elsewhere or none
    std::uint32_t row;    ///< of the expert's rows, where this lane's copy goes
    std::uint32_t lanes;  ///< with an expert
  };

  /// What the header of a slot says; no lanes where there is none.
  __device__ Row look_at(std::uint32_t number) const {
    const std::uint32_t me = lane_id();
    Row row;
    row.source = static_cast<std::int32_t>(call_.by_tokens.quotient(number));
    row.token = static_cast<std::int32_t>(call_.by_tokens.remainder(number));
    row.slot = slot_index(group_, call_.sizes, epoch_, row.source, row.token);
    const std::byte* const at =
        me < group_.layout.packets
            ? slot_header(group_, group_.me, row.slot) + me * detail::kPacketBytes
            : nullptr;
    SlotPacket packet{};
    if (at != nullptr) packet = load_packet(at);
    bool used = !left_out_[row.source];
    if (used && __any_sync(kWarp, at != nullptr && !is_epoch(packet.low, epoch_)) != 0) {
      used = __all_sync(kWarp, wait_header(wait_of(row.source), row.token, at)) != 0;
      if (used && at != nullptr) packet = load_packet(at);
    }
    constexpr auto kLanes = static_cast<std::uint32_t>(detail::kLanesPerPacket);
    const SlotPacket mine{__shfl_sync(kWarp, packet.low, me / kLanes),
                          __shfl_sync(kWarp, packet.high, me / kLanes)};
    row.place = used ? SlotPacket{0, __shfl_sync(kWarp, packet.high, 0)}.place() : 0;
    row.expert =
        used && me < static_cast<std::uint32_t>(group_.top_k) ? mine.expert(me % kLanes) : -1;
    row.lanes = __ballot_sync(kWarp, row.expert >= 0);
    row.row = mine.number(me % kLanes);
    return row;
  }

  /// Of this lane in the arrays of the handle.
  __device__ std::size_t handle_lane(std::uint32_t slot) const {
    return static_cast<std::size_t>(slot) * group_.top_k + lane_id();
  }
  /// A row among those of all experts, by the lane that knows it.
  __device__ std::size_t target(const Row& row, int lane) const {
    return static_cast<std::size_t>(__shfl_sync(kWarp, row.expert, lane)) * slots_ +
           __shfl_sync(kWarp, row.row, lane);
  }
  __device__ static uint4* chunk_at(std::byte* base, std::uint32_t chunk) {
    return reinterpret_cast<uint4*>(base) + chunk;
  }

  /// A piece of the row in a slot; with the first one, what else there is of it.
  __device__ void copy(std::uint32_t slot, std::uint32_t piece) const {
    Row row = look_at(slot);
    if (piece == 0 && lane_id() == 0) {
      const std::int32_t behind = row.source - group_.me - 1;
      call_.handle.pairs[row.token * group_.ranks + (behind < 0 ? behind + group_.ranks : behind)] =
          {row.source, row.token, static_cast<std::int32_t>(row.place) - 1, row.lanes};
    }
    if (row.lanes == 0) return;
    if (row.expert >= 0) row.row += rows_of(row.expert, 0, row.source);
    __syncwarp();
    if (!rows_tell(group_) &&
        __all_sync(kWarp,
                   wait_ready(wait_of(row.source), slot_ready(group_, group_.me, row.slot))) == 0)
      return;
    copy_piece(row, piece * kPieceChunks);
    if (piece != 0) return;
    if (quantized()) copy_scales(row);
    if (row.expert < 0) return;
    const std::size_t at = static_cast<std::size_t>(row.expert) * slots_ + row.row;
    call_.source_token[at] = row.token;
    call_.handle.rows[handle_lane(slot)] = static_cast<std::int32_t>(at);
    if (call_.has_weights != 0) keep_weight(row, slot);
  }

  __device__ void copy_piece(const Row& row, std::uint32_t first) const {
    const std::uint32_t chunks =
        static_cast<std::uint32_t>(call_.sizes.hidden) * (quantized() ? 1 : 2) / 16;
    std::byte* const from = slot_row(group_, group_.me, row.slot);
    const std::uint32_t begin = first + lane_id();
    std::uint32_t wanted = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i)
      if (begin + i * 32 < chunks) wanted |= 1u << i;
    uint4 data[kAhead];
    const bool came = take(
        group_, about_rows(), wanted, data,
        [&](int i) { return chunk_at(from, begin + static_cast<std::uint32_t>(i) * 32); },
        [&](int) { return row.source; });
    if (__all_sync(kWarp, came) == 0) return;
#pragma unroll 1
    for (std::uint32_t left = row.lanes; left != 0; left &= left - 1) {
      std::byte* const to = call_.x + target(row, __ffs(left) - 1) * chunks * sizeof(uint4);
#pragma unroll
      for (std::uint32_t i = 0; i < kAhead; ++i)
        if (wanted >> i & 1) *chunk_at(to, begin + i * 32) = data[i];
    }
  }

  /// The scales of a row lie a row apart in a result; a lane has four of them.
  __device__ void copy_scales(const Row& row) const {
    const auto groups = static_cast<std::uint32_t>(numeric::group_count(call_.sizes.hidden));
    const std::uint32_t words = (groups + 3) / 4;
    std::byte* const from = slot_row(group_, group_.me, row.slot) + group_.layout.slot_scales;
#pragma unroll 1
    for (std::uint32_t first = 0; first < words; first += 32) {
      const std::uint32_t word = first + lane_id();
      uint4 data[1];
      const bool came = take(
          group_, about_rows(), word < words ? 1u : 0u, data,
          [&](int) { return chunk_at(from, word); }, [&](int) { return row.source; });
      if (__all_sync(kWarp, came) == 0) return;
      const std::uint32_t scales[4] = {data[0].x, data[0].y, data[0].z, data[0].w};
#pragma unroll 1
      for (std::uint32_t left = row.lanes; left != 0; left &= left - 1) {
        const auto expert =
            static_cast<std::size_t>(__shfl_sync(kWarp, row.expert, __ffs(left) - 1));
        const std::uint32_t number = __shfl_sync(kWarp, row.row, __ffs(left) - 1);
        if (word < words) store_scales(scales, word, groups, expert, number);
      }
    }
  }

  __device__ void store_scales(const std::uint32_t (&scales)[4], std::uint32_t word,
                               std::uint32_t groups, std::size_t expert, std::size_t row) const {
    if (call_.quantize == static_cast<std::uint32_t>(Quantize::fp8_ue8m0)) {
      std::int32_t packed = 0;
#pragma unroll
      for (std::uint32_t g = 0; g < 4; ++g)
        if (4 * word + g < groups)
          packed = numeric::with_ue8m0(packed, g, __uint_as_float(scales[g]));
      static_cast<std::int32_t*>(
          call_.scales)[(expert * ((groups + 3) / 4) + word) * slots_ + row] = packed;
      return;
    }
#pragma unroll
    for (std::uint32_t g = 0; g < 4; ++g)
      if (4 * word + g < groups)
        static_cast<std::uint32_t*>(call_.scales)[(expert * groups + 4 * word + g) * slots_ + row] =
            scales[g];
  }

  /// Of this lane: the half of the slots may be written again before the combine reads it.
  __device__ void keep_weight(const Row& row, std::uint32_t slot) const {
    auto* const from =
        reinterpret_cast<std::uint32_t*>(slot_weights(group_, group_.me, row.slot)) + lane_id();
    std::uint32_t weight = load_fresh(from);
    if (rows_tell(group_)) {
      if (weight == kSentinel) weight = wait_word(wait_of(row.source), about_rows(), from);
      *from = kSentinel;
    }
    call_.handle.weights[handle_lane(slot)] = __uint_as_float(weight);
  }

  const SlotsReceive& call_;
  const DeviceGroup& group_;
  /// Members that were masked when the block began: of one that fails later the counts that have
  /// come still count, or warps would number rows differently.
  const bool* const left_out_;
  const std::uint64_t epoch_;
  const std::uint32_t slots_;
  std::uint32_t passed_ = 0;  ///< pass_epoch
};

// A block must fit beside one of the send that it is chained to: as many registers a thread as
// blocks of this size could have are few enough.
constexpr std::uint32_t kBoundThreads = 640;
static_assert(kBoundThreads >= kThreads);

__global__ void __launch_bounds__(kBoundThreads, 1)
    dispatch_receive_impl(const __grid_constant__ SlotsReceive call) {
  begin_kernel(call.chained != 0);
  __shared__ bool left_out[kMaxDeviceRanks];
  Receiver receiver(call, left_out);
  __syncthreads();
  receiver.pass();
  receiver.run();
  receiver.end();
  end_chained(call.chained != 0);
}

}  // namespace

void launch_slots_receive(SlotsReceive& call, const Machine& machine, cudaStream_t stream) {
  const auto hidden = static_cast<std::uint32_t>(call.sizes.hidden);
  const bool quantized = call.quantize != static_cast<std::uint32_t>(Quantize::none);
  const auto tokens = static_cast<std::uint32_t>(call.sizes.max_tokens);
  const std::uint32_t slots = static_cast<std::uint32_t>(call.group.ranks) * tokens;
  call.pieces = (hidden * (quantized ? 1 : 2) / 16 + kPieceChunks - 1) / kPieceChunks;
  call.by_tokens = Divisor(tokens);
  call.by_slots = Divisor(slots);
  const auto most = static_cast<std::uint32_t>(machine.most_blocks > 0 ? machine.most_blocks
                                                                       : machine.multiprocessors);
  const std::uint32_t blocks =
      std::min(slots * call.pieces + 1, most);  // a few warps busy in each before all in one
  launch(dispatch_receive_impl, blocks, kThreads, 0, call, machine, stream);
}

void load_slots_receive() {
  load_kernel(dispatch_receive_impl);
}

}  // namespace shoal::ep::cuda
