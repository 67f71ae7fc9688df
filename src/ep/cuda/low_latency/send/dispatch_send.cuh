// SPDX-License-Identifier: Apache-2.0
// dispatch_send.cuh: the send of a low-latency dispatch. Each token goes once to every rank that
// has one of its experts, into a slot fixed by (source, token); the receiver copies it for each
// expert.
//
// Moves, for each copy of a token, from x to the slot at the receiving rank: the row
// (detail::RowFormat), and 4 B a top-k slot of weights where they travel. Every rank gets a header
// of 16 B for each two top-k slots of every token, and once 8 B for each of its experts.
//
// The first block sends what exists once for a dispatch: notices, and the counts of rows before all
// rows. The other blocks take a token at a time: they load and quantize the row once, in registers,
// and store it to each rank from there, 16 B a thread, while a warp of its own sends the header. A
// launch therefore has at least two blocks, even where the caller allows one.
//
// Waits: `dispatch_read` of all ranks for the use before last of this half. Where dispatches and
// combines take turns, it arrived earlier, and the send waits for no rank. Publishes: grants and a
// notice to every rank; the header of each token to every rank and its row to those that get it, in
// no order (self_signalling.cuh); with flags, about when the row is stored, a ready word. Memory
// order: words that carry the epoch or are their own signal need none; in groups that mask ranks, a
// ready word is a release at system scope after a barrier of the threads that store the row.
//
// Measured: docs/decisions/self-signalling-rows.md. With 128 tokens most of the time is
// latency, not that of the links.
#pragma once

#include "ep/cuda/low_latency/device/grants.cuh"
#include "ep/cuda/low_latency/device/launch.cuh"
#include "ep/cuda/low_latency/formats/encode.cuh"
#include "ep/cuda/low_latency/send/dispatch_token.cuh"
#include "ep/cuda/low_latency/send/row_parts.cuh"

namespace shoal::ep::cuda::dispatch_send {

// Threads that send rows: one for each 16 channels, up to a number with which a quarter of a block,
// with the warp of the headers, has all registers of a quarter of an SM; at least one for each
// rank, because a thread waits for the grant of each.
constexpr std::uint32_t kMaxThreads = 480, kMinThreads = kMaxDeviceRanks;
constexpr std::uint32_t kUnit = 16;  // channels that a thread handles at a time

/// Barrier of the `threads` threads of a block that send rows.
__device__ inline void row_barrier(std::uint32_t threads) {
  ptx::bar_sync<1>(threads);
}

/// Counts the rows of each expert, kCounted experts at a time, and sends the counts. The `threads`
/// threads of a block that send rows call.
class ExpertRowCounts {
 public:
  static constexpr std::int32_t kCounted = 1024;  ///< experts

  __device__ ExpertRowCounts(const LowLatencyDispatchSend& call, std::uint32_t threads,
                             std::uint32_t* counts)
      : call_(call),
        threads_(static_cast<std::int32_t>(threads)),
        counts_(counts),
        place_(place_of(me())),
        given_(me() < call.tokens * call.group.top_k ? given_expert(call, me()) : -1) {}

  __device__ void count(std::int32_t from) const {
    const DeviceGroup& group = call_.group;
    for (std::int32_t e = me(); e < kCounted; e += threads_) counts_[e] = 0;
    row_barrier(static_cast<std::uint32_t>(threads_));
#pragma unroll 1
    for (std::int32_t at = me(); at < call_.tokens * group.top_k; at += threads_) {
      const std::int64_t expert = at == me() ? given_ : given_expert(call_, at);
      if (expert >= from && expert < min(from + kCounted, group.experts) &&
          is_first(call_, at, expert))
        atomicAdd(counts_ + (expert - from), 1u);
    }
    row_barrier(static_cast<std::uint32_t>(threads_));
  }

  /// Sends each count to the rank of its expert, after count(from).
  __device__ void send(std::int32_t from, std::uint64_t epoch, const bool* masked) const {
    const DeviceGroup& group = call_.group;
#pragma unroll 1
    for (std::int32_t e = from + me(); e < min(from + kCounted, group.experts); e += threads_) {
      const ExpertPlace place = e == me() ? place_ : place_of(e);
      if (!masked[place.rank()])
        ptx::st_relaxed_sys_global(
            slot_counts(group, place.rank(), epoch, group.me) + place.local(),
            (epoch & 0xffff'ffffu) | std::uint64_t{counts_[e - from]} << 32);
    }
  }

 private:
  __device__ static std::int32_t me() { return static_cast<std::int32_t>(threadIdx.x); }
  __device__ ExpertPlace place_of(std::int32_t expert) const {
    if (expert >= call_.group.experts) return {};
    return call_.group.expert_table.place(expert);
  }

  const LowLatencyDispatchSend& call_;
  const std::int32_t threads_;
  std::uint32_t* const counts_;
  // Loaded before anything is counted.
  const ExpertPlace place_;   ///< of expert me()
  const std::int64_t given_;  ///< index me() of all tokens
};

/// Calls f(rank) for every rank that gets the token.
template <int kPerLane, typename F>
__device__ void for_targets(const LowLatencyToken<kPerLane>& t, F&& f) {
  for (NumberSet<kPerLane> left = t.targets; left.any(); left = left.without_first())
    f(value_of(t.slot.rank, static_cast<std::uint32_t>(left.first())));
}

/// Sends the row in bfloat16.
template <int kPerLane>
__device__ void send_row(const LowLatencyDispatchSend& call, const LowLatencyToken<kPerLane>& t,
                         const RowPart& begin, std::size_t slot, std::int32_t token) {
  const auto vectors = static_cast<std::uint32_t>(call.sizes.hidden) / 8;
  for_parts<RowKind::wide>(call, token, begin, [&](std::uint32_t turn, const RowPart& part) {
    const std::uint32_t low = vector_of<RowKind::wide>(call, turn, 0),
                        high = vector_of<RowKind::wide>(call, turn, 1);
    for_targets(t, [&](std::int32_t rank) {
      auto* const target = reinterpret_cast<uint4*>(slot_row(call.group, rank, slot));
      if (low < vectors) store_row(target + low, part.low);
      if (high < vectors) store_row(target + high, part.high);
    });
  });
}

/// Sends the row in float8, 16 channels a thread. The 8 threads of a group of channels compute its
/// scale together, and the scales of a warp's 4 groups are one store.
template <int kPerLane>
__device__ void send_float8_row(const LowLatencyDispatchSend& call,
                                const LowLatencyToken<kPerLane>& t, const RowPart& begin,
                                std::size_t slot, std::int32_t token) {
  constexpr std::uint32_t kThreadsPerGroup = numeric::kGroupChannels / kUnit;
  const auto units = static_cast<std::uint32_t>(call.sizes.hidden) / kUnit;
  const auto rounding = call.quantize == static_cast<std::uint32_t>(Quantize::fp8)
                            ? numeric::ScaleRounding::none
                            : numeric::ScaleRounding::power_of_two;
  // Whole warps take turns together because of the shuffles; the last group can be short.
  for_parts<RowKind::wide>(call, token, begin, [&](std::uint32_t turn, const RowPart& part) {
    const std::uint32_t unit = turn * (blockDim.x - 32) + threadIdx.x, first = unit - lane_id();
    std::uint32_t largest = largest_magnitude(part.low, part.high);
#pragma unroll
    for (std::uint32_t distance = kThreadsPerGroup / 2; distance > 0; distance /= 2)
      largest = max(largest, __shfl_xor_sync(kWarp, largest, distance));
    const numeric::Scale scale = float8_scale(__uint_as_float(largest << 16), rounding);
    const uint2 a = encode_e4m3(part.low, scale.quantize),
                b = encode_e4m3(part.high, scale.quantize);
    const uint4 codes{a.x, a.y, b.x, b.y};
    const std::uint32_t bits = __float_as_uint(scale.dequantize);
    uint4 inverse;
    inverse.x = __shfl_sync(kWarp, bits, 0);
    inverse.y = __shfl_sync(kWarp, bits, kThreadsPerGroup);
    inverse.z = __shfl_sync(kWarp, bits, 2 * kThreadsPerGroup);
    inverse.w = __shfl_sync(kWarp, bits, 3 * kThreadsPerGroup);
    for_targets(t, [&](std::int32_t rank) {
      std::byte* const target = slot_row(call.group, rank, slot, token, call.row);
      if (unit < units) store_row(reinterpret_cast<uint4*>(target) + unit, codes);
      if (lane_id() == 0)  // slots have room for a multiple of four scales
        store_row(reinterpret_cast<uint4*>(target + call.row.scales +
                                           first / kThreadsPerGroup * sizeof(float)),
                  inverse);
    });
  });
}

/// Sends a row whose scales are bytes, 16 channels a thread. Lanes with scales of neighbouring
/// groups put them together, so that the scales of a warp are one or two stores.
template <RowKind kRows, int kPerLane>
__device__ void send_byte_scaled_row(const LowLatencyDispatchSend& call,
                                     const LowLatencyToken<kPerLane>& t, const RowPart& begin,
                                     float global_scale, std::size_t slot, std::int32_t token) {
  constexpr bool kFourBits = kRows == RowKind::nvfp4;
  constexpr int kLanes = kFourBits ? 1 : 2;           // of a group
  constexpr std::uint32_t kScaleChunks = 2 / kLanes;  // of a warp
  const auto units = static_cast<std::uint32_t>(call.sizes.hidden) / kUnit;
  const auto lane = static_cast<int>(lane_id());
  const GlobalScale global(global_scale);
  for_parts<kRows>(call, token, begin, [&](std::uint32_t turn, const RowPart& part) {
    const std::uint32_t unit = turn * (blockDim.x - 32) + threadIdx.x, first = unit - lane_id();
    std::uint32_t largest = largest_magnitude(part.low, part.high);
    if constexpr (!kFourBits) largest = max(largest, __shfl_xor_sync(kWarp, largest, 1));
    uint4 codes;
    std::uint32_t word = encode_unit<kRows>(part.low, part.high, largest, global, codes)
                         << 8 * (lane / kLanes % 4);
    word |= __shfl_xor_sync(kWarp, word, kLanes);
    word |= __shfl_xor_sync(kWarp, word, 2 * kLanes);
    const int from = kFourBits ? lane % 2 * 16 : 0;
    uint4 scales;
    scales.x = __shfl_sync(kWarp, word, from);
    scales.y = __shfl_sync(kWarp, word, from + 4 * kLanes);
    scales.z = __shfl_sync(kWarp, word, from + 8 * kLanes);
    scales.w = __shfl_sync(kWarp, word, from + 12 * kLanes);
    if constexpr (kFourBits) {  // two lanes have 16 bytes
      codes.z = __shfl_xor_sync(kWarp, codes.x, 1);
      codes.w = __shfl_xor_sync(kWarp, codes.y, 1);
    }
    const std::uint32_t scale_chunk = first / (16 * kLanes) + lane_id();
    for_targets(t, [&](std::int32_t rank) {
      auto* const target =
          reinterpret_cast<uint4*>(slot_row(call.group, rank, slot, token, call.row));
      if (unit < units && (!kFourBits || lane % 2 == 0))
        ptx::st_relaxed_sys_global(target + (kFourBits ? unit / 2 : unit), codes);
      if (lane_id() < kScaleChunks && scale_chunk < call.row.scale_chunks)
        ptx::st_relaxed_sys_global(target + call.row.scales / sizeof(uint4) + scale_chunk, scales);
    });
  });
  if (!kFourBits || threadIdx.x >= 32) return;
  for_targets(t, [&](std::int32_t rank) {
    if (lane == 0)
      store_row(reinterpret_cast<uint4*>(slot_row(call.group, rank, slot, token, call.row) +
                                         call.row.scales) +
                    call.row.scale_chunks,
                uint4{__float_as_uint(global.scale), 0, 0, 0});
  });
}

/// Sends the header of the token to every rank. A warp of its own calls, in addition to those that
/// send the row.
template <int kPerLane>
__device__ void send_header(const LowLatencyDispatchSend& call, const LowLatencyToken<kPerLane>& t,
                            const std::uint32_t* numbers, std::uint64_t epoch, std::size_t slot,
                            const bool* masked) {
  const auto packets = static_cast<std::int32_t>(call.group.layout.packets);
  std::uint32_t mine[kPerLane];
#pragma unroll
  for (int turn = 0; turn < kPerLane; ++turn) mine[turn] = numbers[number_of_lane(turn)];
#pragma unroll 1
  for (std::int32_t first = 0; first < call.group.ranks * packets; first += 32) {
    const std::int32_t i = first + static_cast<std::int32_t>(lane_id());
    const std::int32_t rank = i / packets, packet = i % packets;
    bool has_row = false;
#pragma unroll 1
    for (NumberSet<kPerLane> left = t.targets; left.any(); left = left.without_first())
      has_row = value_of(t.slot.rank, static_cast<std::uint32_t>(left.first())) == rank || has_row;
    std::int32_t experts[detail::kTopkSlotsPerPacket];
    std::uint32_t number[detail::kTopkSlotsPerPacket];
#pragma unroll
    for (std::uint32_t k = 0; k < detail::kTopkSlotsPerPacket; ++k) {
      constexpr std::uint32_t kSlots = 32 * kPerLane;
      const std::uint32_t topk_slot =
          static_cast<std::uint32_t>(packet) * detail::kTopkSlotsPerPacket + k;
      const ExpertPlace place{value_of(t.place, topk_slot % kSlots)};
      number[k] = value_of(mine, topk_slot % kSlots);
      experts[k] = topk_slot < kSlots ? place.local_at(rank) : -1;
    }
    if (i < call.group.ranks * packets && !masked[rank])
      store_packet(slot_header(call.group, rank, slot) + packet * detail::kPacketBytes,
                   SlotPacket::of(epoch, has_row, experts, number));
  }
}

/// Counts the rows of the token. One warp calls.
template <int kPerLane>
__device__ void count_rows(const LowLatencyDispatchSend& call, const LowLatencyToken<kPerLane>& t) {
  const DeviceGroup& group = call.group;
  const auto format = static_cast<Quantize>(call.quantize);
  const int bits = format == Quantize::none ? 0 : format == Quantize::nvfp4 ? 2 : 1;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (t.targets.has(number_of_lane(i)))
      count_up(&low_latency_rows(group).sent[t.slot.rank[i]][bits], 1);
}

/// Sends the weights of the top-k slots, a rank at a time. One warp calls.
template <int kPerLane>
__device__ void send_weights(const LowLatencyDispatchSend& call, const LowLatencyToken<kPerLane>& t,
                             std::size_t slot) {
  for_targets(t, [&](std::int32_t rank) {
    auto* const to = reinterpret_cast<std::uint32_t*>(slot_weights(call.group, rank, slot));
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (t.slot.rank[i] == rank) store_word(to + number_of_lane(i), __float_as_uint(t.weight[i]));
  });
}

/// Publishes the row, a rank a lane.
template <int kPerLane>
__device__ void send_ready(const LowLatencyDispatchSend& call, const LowLatencyToken<kPerLane>& t,
                           std::uint64_t epoch, std::size_t slot) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (threadIdx.x < 32 && t.targets.has(number_of_lane(i)))
      raise_row_flag(call.group, slot_ready(call.group, t.slot.rank[i], slot), epoch);
}

/// Sends everything but the header. The threads that send rows call.
template <RowKind kRows, int kPerLane>
__device__ void send_token(const LowLatencyDispatchSend& call, const LowLatencyToken<kPerLane>& t,
                           const RowPart& begin, float global_scale, std::uint64_t epoch,
                           std::size_t slot, std::int32_t token, std::uint32_t row_threads) {
  if (call.weights != nullptr && threadIdx.x < 32) send_weights(call, t, slot);
  if constexpr (kRows != RowKind::wide)
    send_byte_scaled_row<kRows>(call, t, begin, global_scale, slot, token);
  else if (sends_bfloat16(call))
    send_row(call, t, begin, slot, token);
  else
    send_float8_row(call, t, begin, slot, token);
  if (call.flags == 0) return;
  if (!self_signalling(call.group)) row_barrier(row_threads);
  send_ready(call, t, epoch, slot);
}

/// Waits until rank `me` has granted the half, if it is one; false where the group has failed. A
/// barrier of the block has to follow. `counted`: the wait is; one block of a launch counts.
template <bool counted>
__device__ bool wait_grant(const DeviceGroup& group, std::uint64_t epoch, std::int32_t me,
                           bool* masked) {
  if (me >= group.ranks) return true;
  std::uint64_t waited = 0;
  const bool failed = aborted(group);  // in flight with the grant
  // The load of the grant does not wait for that of the epoch.
  const bool granted = wait_signal_or_mask(
      group, group.layout.dispatch_read, me, epoch > 2 ? epoch - 2 : 0,
      Phase::low_latency_dispatch_grant, kDispatchOperation, counted ? &waited : nullptr);
  if constexpr (counted)
    count_first_wait(group, KernelKind::low_latency_dispatch_send, epoch, me, waited);
  masked[me] = is_masked(group, me);
  return !failed && (granted || !aborted(group));
}

/// Tells all ranks that this dispatch has begun. A warp calls.
__device__ inline void begin_dispatch(const LowLatencyDispatchSend& call, std::uint64_t epoch) {
  const DeviceGroup& group = call.group;
  const RowWait send = dispatch_row_wait(group, Phase::low_latency_dispatch_grant, epoch);
  begin_send(group, dispatch_grants(group), combine_grants(group), send, [&](std::uint64_t left) {
    const std::size_t slots = static_cast<std::size_t>(group.ranks) * call.sizes.max_tokens;
    const std::size_t first = slot_index(group, call.sizes, left, 0, 0);
    fill_sentinel(slot_row(group, group.me, first), slots * group.layout.slot_bytes);
    fill_sentinel(reinterpret_cast<std::byte*>(slot_weights(group, group.me, first)),
                  slots * group.top_k * sizeof(float));
  });
}

/// The first block's part: what exists once for a dispatch. Receivers need the counts before any
/// row, so nothing may delay them. Returns pass_epoch().
template <bool kCounts>
__device__ std::uint32_t notify_ranks(const LowLatencyDispatchSend& call, std::uint64_t epoch,
                                      std::uint32_t row_threads, bool* masked) {
  __shared__ std::uint32_t count_of[ExpertRowCounts::kCounted];
  const DeviceGroup& group = call.group;
  __syncthreads();
  const std::uint32_t passed = pass_epoch(group, KernelKind::low_latency_dispatch_send, false);
  if (threadIdx.x >= row_threads) {
    begin_dispatch(call, epoch);
    if (kCounts && lane_id() == 0)
      add_last_launch(group, KernelKind::low_latency_dispatch_send, epoch);
    return passed;
  }
  const ExpertRowCounts counts(call, row_threads, count_of);
  const auto me = static_cast<std::int32_t>(threadIdx.x);
  wait_grant<kCounts>(group, epoch, me, masked);
  counts.count(0);
  if (me < group.ranks)
    ptx::st_relaxed_sys_global(
        dispatch_notice(group, me, epoch, group.me),
        DispatchNoticeWord{call.tokens, call.quantize, call.weights != nullptr, masked[me]}.word(
            epoch));
  counts.send(0, epoch, masked);
  for (std::int32_t from = ExpertRowCounts::kCounted; from < group.experts;
       from += ExpertRowCounts::kCounted) {
    row_barrier(row_threads);
    counts.count(from);
    counts.send(from, epoch, masked);
  }
  return passed;
}

/// The other blocks' part: tokens `token`, `token + step`, ... Returns pass_epoch().
///
/// The warp of the headers waits for the grants while the others load and number the first token.
template <bool kCounts, RowKind kRows, bool kJoined, int kPerLane>
__device__ std::uint32_t send_tokens(const LowLatencyDispatchSend& call, std::uint64_t epoch,
                                     std::uint32_t row_threads, std::int32_t token,
                                     std::int32_t step, bool* masked) {
  __shared__ std::uint32_t numbers[32 * kPerLane];  // row numbers of a token, by top-k slot
  __shared__ std::int32_t places[kSharedPlaces];
  const DeviceGroup& group = call.group;
  const auto me = static_cast<std::int32_t>(threadIdx.x);
  const bool sends_rows = threadIdx.x < row_threads;
  bool usable = true;
  for (auto rank = static_cast<std::int32_t>(lane_id()); !sends_rows && rank < group.ranks;
       rank += 32)
    usable = wait_grant<false>(group, epoch, rank, masked) && usable;
  if (me < 32 * kPerLane) numbers[me] = 0;
  const std::int64_t earlier = earlier_expert(call, token, me);
  // The row is in flight with the experts of its token.
  RowPart part;
  if (!kJoined) prefetch_row(call, token);
  if (kJoined && sends_rows) part = load_part<kRows>(call, token, 0);
  const float global_scale =
      kRows == RowKind::nvfp4 && call.global_scale != nullptr ? __ldg(call.global_scale) : 1.0F;
  const std::int32_t shared_places = min(group.experts, kSharedPlaces);
  std::int32_t place = -1;
  if (me < shared_places) place = group.expert_table.places[me];
  LowLatencyToken<kPerLane> t = load_token<kPerLane>(call, token, me < 32);
  if (me < shared_places) places[me] = place;
  for (std::int32_t e = me + static_cast<std::int32_t>(blockDim.x); e < shared_places;
       e += static_cast<std::int32_t>(blockDim.x))
    places[e] = group.expert_table.places[e];
  if (sends_rows) {
    row_barrier(row_threads);
    number_rows(call, token, t.expert, row_threads, earlier, numbers);
  }
  usable = __syncthreads_and(usable) != 0;
  const std::uint32_t passed = pass_epoch(group, KernelKind::low_latency_dispatch_send, false);
  if (!usable) return passed;
  while (token < call.tokens) {
    find_targets(t, places, masked);
    const std::size_t slot = slot_index(group, call.sizes, epoch, group.me, token);
    if (threadIdx.x >= row_threads) {
      send_header(call, t, numbers, epoch, slot, masked);
      if (kCounts) count_rows(call, t);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) numbers[number_of_lane(i)] = 0;
    } else {
      if (!kJoined) part = load_part<kRows>(call, token, 0);
      send_token<kRows>(call, t, part, global_scale, epoch, slot, token, row_threads);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        if ((kPerLane == 1 || me < 32) && 32 * i + me < group.top_k)
          call.handle.ranks[static_cast<std::size_t>(token) * group.top_k + 32 * i + me] =
              t.slot.rank[i];
    }
    token += step;
    if (token >= call.tokens) break;
    if (kJoined && sends_rows) part = load_part<kRows>(call, token, 0);
    t = load_token<kPerLane>(call, token, me < 32);
    __syncthreads();
    if (sends_rows)
      number_rows(call, token, t.expert, row_threads, earlier_expert(call, token, me), numbers);
    __syncthreads();
  }
  return passed;
}

/// For a receive that is deferred. Reports a scale that is none.
__device__ inline void keep_global_scale(const LowLatencyDispatchSend& call, std::uint64_t epoch) {
  const float scale = call.global_scale == nullptr ? 1.0F : *call.global_scale;
  call.handle.header->global_scale = scale;
  if (!(scale > 0 && __float_as_uint(scale) < numeric::kInfinityBits))
    report_fault(call.group, Fault::bad_scale, Phase::low_latency_dispatch_receive,
                 kDispatchOperation, call.group.me, epoch, __float_as_uint(scale), 0, 0, 0, false);
}

/// The send. The `blocks` blocks call, of blockDim.x threads; kCounts: counts(call.group). kJoined:
/// in one launch with the receive. kPerLane: as in slots.cuh.
template <bool kCounts, RowKind kRows, bool kJoined, int kPerLane>
__device__ void send(const LowLatencyDispatchSend& call, const BlockRange& blocks) {
  __shared__ bool masked[kMaxDeviceRanks];
  const DeviceGroup& group = call.group;
  const std::uint64_t epoch = group.memory->dispatches_sent + 1;
  const std::uint32_t row_threads = blockDim.x - 32;
  if (kCounts && blocks.me == 0 && threadIdx.x == row_threads)
    note_start(group, KernelKind::low_latency_dispatch_send, epoch,
               RecordedOperation::low_latency_dispatch);
  const auto block = static_cast<std::int32_t>(blocks.me),
             count = static_cast<std::int32_t>(blocks.count);
  const std::uint32_t passed = block == 0
                                   ? notify_ranks<kCounts>(call, epoch, row_threads, masked)
                                   : send_tokens<kCounts, kRows, kJoined, kPerLane>(
                                         call, epoch, row_threads, block - 1, count - 1, masked);
  if (kCounts && threadIdx.x == 0) note_end(group, KernelKind::low_latency_dispatch_send, epoch);
  end_kernel(group, KernelKind::low_latency_dispatch_send, false, passed, blocks.count, [&] {
    group.memory->dispatches_sent = epoch;
    call.handle.header->epoch = epoch;
    if constexpr (kRows == RowKind::nvfp4) keep_global_scale(call, epoch);
    __threadfence();
    *static_cast<volatile std::uint64_t*>(&call.handle.header->serial) = call.serial;
  });
}

/// Threads of a block for rows of this size.
inline std::uint32_t threads_of(const LowLatencySizes& sizes) {
  const auto units = (static_cast<std::uint32_t>(sizes.hidden) + kUnit - 1) / kUnit;
  return std::min(std::max((units + 31) / 32 * 32, kMinThreads), kMaxThreads) + 32;
}

/// A block for each token, and the first one; at most `most`.
inline std::uint32_t blocks_of(const LowLatencyDispatchSend& call, std::int32_t most) {
  return static_cast<std::uint32_t>(std::max(2, std::min(call.tokens + 1, most)));
}

}  // namespace shoal::ep::cuda::dispatch_send
