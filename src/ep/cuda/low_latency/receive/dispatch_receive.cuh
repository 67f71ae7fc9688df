// SPDX-License-Identifier: Apache-2.0
// dispatch_receive.cuh: the receive of a low-latency dispatch. It copies rows from the slots of all
// sources to the rows of each local expert, ordered by source, then token.
//
// Moves within this GPU's memory: each slot is read once and written once for each of its experts
// here. A warp takes a piece of a row. The header says the number of the row among those of its
// source, and the counts of earlier sources say how many rows come before, so no warp waits for
// another. The first block describes the result and copies rows only where it is the only block.
//
// Waits: the header of each slot, the counts of the sources before it, then the words of the row
// (self_signalling.cuh), or in groups that mask ranks its ready word. Publishes: the grant of the
// half, at the end, where the receive does not directly follow its send; otherwise the next send
// grants it. Memory order: headers, counts and rows are words that are their own signals; a ready
// word is acquired at system scope before the row is loaded.
//
// Measured: with dispatch_send.cuh, see there. The code is short on purpose, because an instruction
// that is not yet in an SM's cache costs more than its execution: waits that rarely occur are out
// of line, and loops are unrolled only where that keeps loads in flight.
#pragma once

#include "ep/cuda/low_latency/device/grants.cuh"
#include "ep/cuda/low_latency/device/launch.cuh"
#include "ep/cuda/low_latency/device/topk_slots.cuh"
#include "ep/cuda/low_latency/receive/source_waits.cuh"
#include "ep/numeric/numeric.hpp"

namespace shoal::ep::cuda::dispatch_receive {

constexpr std::uint32_t kThreads = 384;
static_assert(kThreads >= kMaxDeviceRanks);
/// Chunks of 16 bytes of a row that a lane has in flight, next to one of its scales. A piece is
/// what a warp copies at a time; 7168 channels are one, two or four whole pieces.
constexpr int kAhead = 7;
constexpr std::uint32_t kPieceChunks = kAhead * 32;

template <bool kCounts, RowKind kRows, bool kJoined, int kPerLane>
class DispatchReceiver {
 public:
  /// A barrier of the block has to follow, before which `masked` is not read.
  __device__ DispatchReceiver(const DispatchReceivePart& call, const DeviceGroup& group,
                              const BlockRange& blocks, bool* masked)
      : call_(call),
        group_(group),
        blocks_(blocks),
        masked_(masked),
        epoch_(group.memory->dispatches_received + 1),
        slots_(static_cast<std::uint32_t>(group.ranks) *
               static_cast<std::uint32_t>(call.sizes.max_tokens)) {
    const auto me = static_cast<std::int32_t>(threadIdx.x);
    if (me < group_.ranks) masked[me] = is_masked(group_, me);
    if (kCounts && blocks_.me == 0 && me == 0)
      note_start(group_, KernelKind::low_latency_dispatch_receive, epoch_,
                 RecordedOperation::low_latency_dispatch);
  }

  __device__ void run() const {
    if (blocks_.me == 0) describe();
    if (blocks_.count > 1 && blocks_.me == 0) return;
    // Sources fill their first slots, so neighbouring slots go to different blocks.
    const std::uint32_t blocks = max(blocks_.count, 2u) - 1,
                        block = blocks_.count == 1 ? 0 : blocks_.me - 1;
    const std::uint32_t units = slots_ * call_.pieces;
#pragma unroll 1
    for (std::uint32_t unit = threadIdx.x / 32 * blocks + block; unit < units;
         unit += blockDim.x / 32 * blocks)
      copy(call_.by_slots.remainder(unit), call_.by_slots.quotient(unit));
  }

  __device__ void pass() {
    passed_ = pass_epoch(group_, KernelKind::low_latency_dispatch_receive, ordered());
  }

  __device__ void end() const {
    if (kCounts && threadIdx.x == 0)
      note_end(group_, KernelKind::low_latency_dispatch_receive, epoch_);
    end_kernel(
        group_, KernelKind::low_latency_dispatch_receive, ordered(), passed_, blocks_.count, [&] {
          for (auto rank = static_cast<std::int32_t>(lane_id()); rank < group_.ranks; rank += 32) {
            if (call_.grants != 0) grant_at_end(group_, dispatch_grants(group_), rank, epoch_);
            if (call_.wait_ns == nullptr) continue;
            call_.wait_ns[rank] += static_cast<std::int64_t>(call_.longest_wait[rank]);
            call_.longest_wait[rank] = 0;
          }
          if (lane_id() == 0) group_.memory->dispatches_received = epoch_;
        });
  }

 private:
  __device__ bool ordered() const { return call_.grants != 0 || call_.wait_ns != nullptr; }
  __device__ SourceWait wait_of(std::int32_t source) const {
    return {&group_, &call_, epoch_, source};
  }
  __device__ RowWait row_wait() const {
    return dispatch_row_wait(group_, Phase::low_latency_dispatch_receive, epoch_);
  }

  /// Writes the parts of a result that exist once: counts, layout, the number of pairs.
  __device__ void describe() const {
    __shared__ std::int32_t most_tokens;
    const auto me = static_cast<std::int32_t>(threadIdx.x);
    if (me == 0) most_tokens = 0;
    __syncthreads();
    // The last warps wait for the notices while the first wait for the counts.
    const std::int32_t rank = static_cast<std::int32_t>(blockDim.x) - 1 - me;
    if (rank < group_.ranks) {
      const std::uint64_t said = wait_notice<kCounts>(wait_of(rank));
      atomicMax(&most_tokens, DispatchNoticeWord::of(said).tokens);
      check_agreement(rank, said);
    }
#pragma unroll 1
    for (std::int32_t item = me; item < group_.local_experts * group_.ranks;
         item += static_cast<std::int32_t>(blockDim.x)) {
      const std::int32_t expert = item / group_.ranks, source = item % group_.ranks;
      const bool is_own = expert < group_.own_experts;  // others have no counts
      std::uint32_t here = 0;
      const std::uint32_t before = is_own ? rows_before(expert, source, &here) : 0;
      call_.layout[item] = static_cast<std::int64_t>(before) << 32 | here;
      if (source != group_.ranks - 1) continue;
      call_.counts[expert] = static_cast<std::int32_t>(before + here);
      if (call_.expert_counts != nullptr)
        call_.expert_counts[expert] += static_cast<std::int32_t>(before + here);
      if (kCounts && is_own) count_up(&group_.record->expert_rows[expert], before + here);
    }
    __syncthreads();
    if (me != 0) return;
    call_.handle.header->pairs = most_tokens * group_.ranks;
    if (kCounts) add_last_launch(group_, KernelKind::low_latency_dispatch_receive, epoch_);
  }

  /// Reports a source that disagrees. Its rows differ from what this rank expects, so no wait for
  /// them may continue; the half is marked as dirty.
  __device__ void check_agreement(std::int32_t source, std::uint64_t word) const {
    if (!is_epoch(word, epoch_) || is_masked(group_, source)) return;
    const DispatchNoticeWord said = DispatchNoticeWord::of(word);
    if (said.quantize == call_.quantize && said.has_weights == (call_.has_weights != 0)) return;
    if (self_signalling(group_)) group_.memory->dirty_dispatch[epoch_ & 1] = epoch_;
    report_fault(group_, Fault::mismatch, Phase::low_latency_dispatch_receive, kDispatchOperation,
                 source, epoch_, word, 0, 0, 0, false);
  }

  /// The number of rows that the sources before `source` have for a local expert. `here`: adds
  /// those of `source`, whose count is loaded with the others.
  __device__ std::uint32_t rows_before(std::int32_t expert, std::int32_t source,
                                       std::uint32_t* here = nullptr) const {
    constexpr int kInFlight = 8;  // loads
    const std::int32_t last = source + (here != nullptr ? 1 : 0);
    std::uint32_t rows = 0;
    const auto add = [&](std::int32_t from, std::uint32_t more) {
      if (here != nullptr && from == source)
        *here += more;
      else
        rows += more;
    };
#pragma unroll 1
    for (std::int32_t first = 0; first < last; first += kInFlight) {
      std::uint64_t words[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        words[i] = epoch_ & 0xffff'ffffu;
        if (first + i < last && !masked_[first + i])
          words[i] = ptx::ld_relaxed_sys_global(slot_counts(group_, group_.me, epoch_, first + i) +
                                                expert);
      }
      std::uint32_t missing = 0;
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (is_epoch(words[i], epoch_))
          add(first + i, static_cast<std::uint32_t>(words[i] >> 32));
        else
          missing |= 1u << i;
      }
#pragma unroll 1
      for (; missing != 0; missing &= missing - 1) {
        const std::int32_t from = first + __ffs(missing) - 1;
        add(from, wait_count(wait_of(from), slot_counts(group_, group_.me, epoch_, from) + expert));
      }
    }
    return rows;
  }

  /// A row as the lanes of its warp hold it: they have its top-k slots (slots.cuh).
  struct ReceivedRow {
    std::int32_t source, token;
    std::size_t slot;                ///< slot_index
    std::int32_t expert[kPerLane];   ///< local; -1: elsewhere or none
    std::uint32_t row[kPerLane];     ///< index among the expert's rows, where the slot's copy goes
    NumberSet<kPerLane> topk_slots;  ///< those with an expert here
  };

  /// Reads the header of a slot; no top-k slots where the source has no such token.
  __device__ ReceivedRow look_at(std::uint32_t number) const {
    constexpr auto kSlots = static_cast<std::uint32_t>(detail::kTopkSlotsPerPacket);
    constexpr std::uint32_t kPackets = 32 / kSlots;  // of 32 top-k slots
    const std::uint32_t me = lane_id();
    ReceivedRow row;
    row.source = static_cast<std::int32_t>(call_.by_tokens.quotient(number));
    row.token = static_cast<std::int32_t>(call_.by_tokens.remainder(number));
    row.slot = slot_index(group_, call_.sizes, epoch_, row.source, row.token);
    const std::byte* at[kPerLane];
    SlotPacket packet[kPerLane] = {};
    bool missing = false;
#pragma unroll
    for (std::uint32_t i = 0; i < kPerLane; ++i) {
      const std::uint32_t p = i * kPackets + me;
      at[i] = p < group_.layout.packets && (kPerLane == 1 || me < kPackets)
                  ? slot_header(group_, group_.me, row.slot) + p * detail::kPacketBytes
                  : nullptr;
      if (at[i] != nullptr) packet[i] = load_packet(at[i]);
      missing = missing || (at[i] != nullptr && !is_epoch(packet[i].low, epoch_));
    }
    bool used = !masked_[row.source];
    if (used && __any_sync(kWarp, missing) != 0) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        used = used && __all_sync(kWarp, wait_header(wait_of(row.source), row.token, at[i])) != 0;
        if (used && at[i] != nullptr) packet[i] = load_packet(at[i]);
      }
    }
    bool here[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const SlotPacket mine{__shfl_sync(kWarp, packet[i].low, me / kSlots),
                            __shfl_sync(kWarp, packet[i].high, me / kSlots)};
      row.expert[i] = used && number_of_lane(i) < static_cast<std::uint32_t>(group_.top_k)
                          ? mine.expert(me % kSlots)
                          : -1;
      row.row[i] = mine.number(me % kSlots);
      here[i] = row.expert[i] >= 0;
    }
    row.topk_slots = NumberSet<kPerLane>::vote(here);
    return row;
  }

  /// Index of a top-k slot in the arrays of the handle.
  __device__ std::size_t handle_index(std::uint32_t slot, std::uint32_t topk_slot) const {
    return static_cast<std::size_t>(slot) * group_.top_k + topk_slot;
  }
  /// Row index over all experts, of the copy for a top-k slot.
  __device__ std::size_t target(const ReceivedRow& row, std::uint32_t topk_slot) const {
    return static_cast<std::size_t>(value_of(row.expert, topk_slot)) * slots_ +
           value_of(row.row, topk_slot);
  }
  /// Adds the rows of earlier sources.
  __device__ void finish_numbers(ReceivedRow& row) const {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (row.expert[i] >= 0) row.row[i] += rows_before(row.expert[i], row.source);
    __syncwarp();
  }
  __device__ static uint4* chunk_at(std::byte* base, std::uint32_t chunk) {
    return reinterpret_cast<uint4*>(base) + chunk;
  }

  /// Copies a piece of the row in a slot, and with the first piece everything else of the slot.
  __device__ void copy(std::uint32_t slot, std::uint32_t piece) const {
    ReceivedRow row = look_at(slot);
    if (piece == 0 && lane_id() == 0) {
      const std::int32_t behind = row.source - group_.me - 1;
      const std::int32_t pair =
          row.token * group_.ranks + (behind < 0 ? behind + group_.ranks : behind);
      call_.handle.pairs[pair] = {row.source, row.token, row.topk_slots.words[0]};
#pragma unroll
      for (int w = 1; w < kPerLane; ++w)
        call_.handle.more_slots[static_cast<std::size_t>(pair) * (kPerLane - 1) +
                                static_cast<std::size_t>(w - 1)] = row.topk_slots.words[w];
      if (kCounts && row.topk_slots.any()) count_up(&low_latency_rows(group_).received, 1);
    }
    if (!row.topk_slots.any()) return;
    __syncwarp();
    if (!self_signalling(group_) &&
        __all_sync(kWarp,
                   wait_ready(wait_of(row.source), slot_ready(group_, group_.me, row.slot))) == 0)
      return;
    const bool keeps_weights = piece == 0 && call_.has_weights != 0;
    const auto source = [&](int) { return row.source; };
    if constexpr (kJoined) {
      // A joined launch has the registers to load everything that the warp needs from the slot
      // together, and with the counts.
      const PieceChunks chunks(*this, row, piece);
      const ScaleChunk scale(*this, row, piece);
      const auto at = [&](int i) { return i < kAhead ? chunks(i) : scale.at; };
      const std::uint32_t wanted = chunks.wanted | scale.wanted() << kAhead;
      uint4 data[kAhead + 1];
      load(wanted, data, at);
      std::uint32_t weight[kPerLane];
      load_weights(row, keeps_weights, weight);
      finish_numbers(row);
      const bool came = take_loaded(group_, row_wait(), wanted, data, at, source);
      if (__all_sync(kWarp, came) == 0) return;
      copy_piece(row, chunks, data);
      copy_scales(row, scale, piece, data[kAhead]);
      keep_weights(row, slot, keeps_weights, weight);
    } else {
      finish_numbers(row);
      const PieceChunks chunks(*this, row, piece);
      uint4 data[kAhead];
      bool came = take(group_, row_wait(), chunks.wanted, data, chunks, source);
      if (__all_sync(kWarp, came) == 0) return;
      copy_piece(row, chunks, data);
      const ScaleChunk scale(*this, row, piece);
      uint4 scales[1];
      came =
          take(group_, row_wait(), scale.wanted(), scales, [&](int) { return scale.at; }, source);
      if (__all_sync(kWarp, came) == 0) return;
      copy_scales(row, scale, piece, scales[0]);
      std::uint32_t weight[kPerLane];
      load_weights(row, keeps_weights, weight);
      keep_weights(row, slot, keeps_weights, weight);
    }
    if (piece != 0) return;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (row.expert[i] < 0) continue;
      const std::size_t at = static_cast<std::size_t>(row.expert[i]) * slots_ + row.row[i];
      call_.source_token[at] = row.token;
      call_.handle.rows[handle_index(slot, number_of_lane(i))] = static_cast<std::int32_t>(at);
    }
  }

  __device__ std::byte* place_of(const ReceivedRow& row) const {
    return slot_row(group_, group_.me, row.slot, row.token, call_.row);
  }

  /// Bytes of scales: those of a piece, in chunks of 16.
  static constexpr bool kFourBits = kRows == RowKind::nvfp4;
  static constexpr std::uint32_t kScaleChunks =
      kPieceChunks * sizeof(uint4) * (kFourBits ? 2 : 1) / (kFourBits ? 16 : 32) / sizeof(uint4);
  static_assert(kScaleChunks < 32);

  /// The chunks of 16 bytes that a lane takes of a piece of a row.
  struct PieceChunks {
    std::byte* row;
    std::uint32_t begin, wanted = 0;

    __device__ PieceChunks(const DispatchReceiver& receiver, const ReceivedRow& of,
                           std::uint32_t piece)
        : row(receiver.place_of(of)), begin(piece * kPieceChunks + lane_id()) {
#pragma unroll
      for (std::uint32_t i = 0; i < kAhead; ++i)
        if (begin + i * 32 < receiver.call_.row.chunks) wanted |= 1u << i;
    }
    __device__ uint4* operator()(int i) const {
      return chunk_at(row, begin + static_cast<std::uint32_t>(i) * 32);
    }
  };

  /// The chunk of scales that a lane takes with a piece: of the piece where scales are bytes,
  /// otherwise, with the first piece, of the row. The global scale follows the others, and the lane
  /// after theirs takes it.
  struct ScaleChunk {
    uint4* at;
    std::uint32_t number;
    bool has_scales, has_global;

    __device__ ScaleChunk(const DispatchReceiver& receiver, const ReceivedRow& of,
                          std::uint32_t piece) {
      constexpr bool kBytes = kRows != RowKind::wide;
      const WireRow& wire = receiver.call_.row;
      number = (kBytes ? piece * kScaleChunks : 0) + lane_id();
      at = chunk_at(receiver.place_of(of) + wire.scales, number);
      has_scales = (kBytes ? lane_id() < kScaleChunks : piece == 0) && number < wire.scale_chunks;
      has_global = kFourBits && lane_id() <= kScaleChunks && number == wire.scale_chunks;
    }
    __device__ std::uint32_t wanted() const { return has_scales || has_global ? 1 : 0; }
  };

  /// `taken`: the chunk that this lane has taken.
  __device__ void copy_scales(const ReceivedRow& row, const ScaleChunk& scale, std::uint32_t piece,
                              const uint4& taken) const {
    if constexpr (kRows != RowKind::wide)
      copy_byte_scales(row, scale, taken);
    else if (piece == 0 && call_.row.scale_chunks != 0)
      copy_float_scales(row, taken);
  }

  template <int kCount>
  __device__ void copy_piece(const ReceivedRow& row, const PieceChunks& chunks,
                             const uint4 (&data)[kCount]) const {
#pragma unroll 1
    for (NumberSet<kPerLane> left = row.topk_slots; left.any(); left = left.without_first()) {
      std::byte* const to = call_.x + target(row, static_cast<std::uint32_t>(left.first())) *
                                          call_.row.chunks * sizeof(uint4);
#pragma unroll
      for (std::uint32_t i = 0; i < kAhead; ++i)
        if (chunks.wanted >> i & 1) *chunk_at(to, chunks.begin + i * 32) = data[i];
    }
  }

  /// Copies float32 scales, four of which a lane has taken. Rows of more than 128 of them have
  /// others.
  __device__ void copy_float_scales(const ReceivedRow& row, const uint4& taken) const {
    std::byte* const from = place_of(row) + call_.row.scales;
    uint4 data[1] = {taken};
#pragma unroll 1
    for (std::uint32_t first = 0; first < call_.row.scale_chunks; first += 32) {
      const std::uint32_t chunk = first + lane_id();
      const bool exists = chunk < call_.row.scale_chunks;
      if (first != 0) {
        const bool came = take(
            group_, row_wait(), exists ? 1u : 0u, data, [&](int) { return chunk_at(from, chunk); },
            [&](int) { return row.source; });
        if (__all_sync(kWarp, came) == 0) return;
      }
      const std::uint32_t scales[4] = {data[0].x, data[0].y, data[0].z, data[0].w};
      if (call_.quantize == static_cast<std::uint32_t>(Quantize::fp8_ue8m0))
        store_words<1>(row, exists, chunk, {pack_ue8m0(scales, chunk)});
      else
        store_words<4>(row, exists, chunk * 4, scales);
    }
  }

  /// Four scales as a word, those that the row has.
  __device__ std::uint32_t pack_ue8m0(const std::uint32_t (&scales)[4], std::uint32_t word) const {
    const auto groups = static_cast<std::uint32_t>(numeric::group_count(call_.sizes.hidden));
    std::int32_t packed = 0;
#pragma unroll
    for (std::uint32_t g = 0; g < 4; ++g)
      if (4 * word + g < groups)
        packed = numeric::with_ue8m0(packed, g, __uint_as_float(scales[g]));
    return static_cast<std::uint32_t>(packed);
  }

  /// Stores words of a row's scales, from number `first` on, for each of its experts here.
  /// `exists`: this lane has words.
  template <std::uint32_t count>
  __device__ void store_words(const ReceivedRow& row, bool exists, std::uint32_t first,
                              const std::uint32_t (&words)[count]) const {
#pragma unroll 1
    for (NumberSet<kPerLane> left = row.topk_slots; left.any(); left = left.without_first()) {
      const auto topk_slot = static_cast<std::uint32_t>(left.first());
      const auto expert = static_cast<std::uint32_t>(value_of(row.expert, topk_slot));
      const std::uint32_t number = value_of(row.row, topk_slot);
      std::uint32_t* const to = call_.scales + call_.scale_words.index(expert, number, first);
#pragma unroll
      for (std::uint32_t i = 0; i < count; ++i)
        if (exists && first + i < call_.scale_words.words)
          to[i * call_.scale_words.word_stride] = words[i];
    }
  }

  /// Copies the scales of a piece where they are bytes, after its codes, which it may restore. A
  /// lane has taken sixteen of them.
  __device__ void copy_byte_scales(const ReceivedRow& row, const ScaleChunk& scale,
                                   const uint4& taken) const {
    const bool exists = scale.has_scales;
    if (scale.has_global) check_global_scale(row, taken.x);
    std::uint32_t words[4] = {taken.x, taken.y, taken.z, taken.w};
    if constexpr (kFourBits) {
      constexpr std::uint32_t kEscaped = numeric::kNvfp4Escaped * 0x0101'0101u;
      const std::uint32_t any = (words[0] | words[1] | words[2] | words[3]) & kEscaped;
      if (__any_sync(kWarp, exists && any != 0) != 0) restore(row, exists, scale.number, words);
#pragma unroll
      for (std::uint32_t& word : words) word &= ~kEscaped;
    } else {
#pragma unroll
      for (std::uint32_t& word : words)
        word |= __vcmpeq4(word, kMxNanOnTheWire * 0x0101'0101u) & 0x0101'0101u;
    }
    store_words<4>(row, exists, scale.number * 4, words);
  }

  /// Restores the groups of sixteen channels whose scales say that their codes travelled as
  /// escape_nvfp4 has made them. The warp has stored these codes itself.
  __device__ __noinline__ void restore(const ReceivedRow& row, bool exists, std::uint32_t chunk,
                                       const std::uint32_t (&words)[4]) const {
    __syncwarp();
#pragma unroll 1
    for (NumberSet<kPerLane> left = row.topk_slots; left.any(); left = left.without_first()) {
      std::byte* const to = call_.x + target(row, static_cast<std::uint32_t>(left.first())) *
                                          call_.row.chunks * sizeof(uint4);
#pragma unroll 1
      for (std::uint32_t g = 0; exists && g < sizeof(uint4); ++g) {
        if ((words[g / 4] >> 8 * (g % 4) & numeric::kNvfp4Escaped) == 0) continue;
        auto* const at = reinterpret_cast<uint2*>(to) + (chunk * sizeof(uint4) + g);
        uint2 codes = *at;
        numeric::restore_nvfp4(codes.x, codes.y, kSentinel);
        *at = codes;
      }
    }
  }

  /// Reports a source whose global scale is another one.
  __device__ __noinline__ void check_global_scale(const ReceivedRow& row,
                                                  std::uint32_t bits) const {
    const float mine = call_.global_scale == nullptr ? 1.0F : *call_.global_scale;
    if (bits != __float_as_uint(mine))
      report_fault(group_, Fault::other_scale, Phase::low_latency_dispatch_receive,
                   kDispatchOperation, row.source, epoch_, bits, 0, __float_as_uint(mine), 0,
                   false);
  }

  __device__ std::uint32_t* weight_at(const ReceivedRow& row, int turn) const {
    return reinterpret_cast<std::uint32_t*>(slot_weights(group_, group_.me, row.slot)) +
           number_of_lane(turn);
  }
  /// Starts to load the weights of this lane's top-k slots, if the warp keeps them.
  __device__ void load_weights(const ReceivedRow& row, bool keeps,
                               std::uint32_t (&weight)[kPerLane]) const {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      weight[i] = kSentinel;
      if (keeps && row.expert[i] >= 0) weight[i] = ptx::ld_relaxed_sys_global(weight_at(row, i));
    }
  }
  /// Copies them after load_weights: the half may be written again before the combine needs them.
  __device__ void keep_weights(const ReceivedRow& row, std::uint32_t slot, bool keeps,
                               const std::uint32_t (&loaded)[kPerLane]) const {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (!keeps || row.expert[i] < 0) continue;
      std::uint32_t weight = loaded[i];
      std::uint32_t* const from = weight_at(row, i);
      if (self_signalling(group_)) {
        if (weight == kSentinel) weight = wait_word(wait_of(row.source), row_wait(), from);
        *from = kSentinel;
      }
      call_.handle.weights[handle_index(slot, number_of_lane(i))] = __uint_as_float(weight);
    }
  }

  const DispatchReceivePart& call_;
  const DeviceGroup& group_;
  const BlockRange blocks_;
  /// Ranks that were masked when the block began. Counts of a rank that fails later remain in use,
  /// otherwise warps would number rows differently.
  const bool* const masked_;
  const std::uint64_t epoch_;
  const std::uint32_t slots_;
  std::uint32_t passed_ = 0;  ///< pass_epoch
};

/// The receive. The `blocks` blocks call; kCounts: counts(call.group). kJoined: in one launch with
/// the send. kPerLane: as in slots.cuh.
template <bool kCounts, RowKind kRows, bool kJoined, int kPerLane>
__device__ void receive(const DispatchReceivePart& call, const DeviceGroup& group,
                        const BlockRange& blocks) {
  __shared__ bool masked[kMaxDeviceRanks];
  DispatchReceiver<kCounts, kRows, kJoined, kPerLane> receiver(call, group, blocks, masked);
  __syncthreads();
  receiver.pass();
  receiver.run();
  receiver.end();
}

/// Completes `call`. Returns the number of blocks, at most `most`.
inline std::uint32_t divide(DispatchReceivePart& call, const DeviceGroup& group,
                            std::int32_t most) {
  const auto tokens = static_cast<std::uint32_t>(call.sizes.max_tokens);
  const std::uint32_t slots = static_cast<std::uint32_t>(group.ranks) * tokens;
  call.pieces = (call.row.chunks + kPieceChunks - 1) / kPieceChunks;
  call.by_tokens = Divisor(tokens);
  call.by_slots = Divisor(slots);
  // A few busy warps in each block rather than all in one.
  return std::min(slots * call.pieces + 1, static_cast<std::uint32_t>(most));
}

}  // namespace shoal::ep::cuda::dispatch_receive
