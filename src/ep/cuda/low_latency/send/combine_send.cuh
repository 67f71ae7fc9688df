// SPDX-License-Identifier: Apache-2.0
// combine_send.cuh: the send of a low-latency combine. The outputs of this rank's experts go to the
// ranks that sent the tokens.
//
// Moves from y, where the experts left it (2 B a channel and expert output), to combine rows at the
// source of the token, by form:
//   sums          one row per (token, rank), at the last top-k slot of the rank: the weighted sum
//                 over this rank's experts of the token, in float32, top-k slots ascending, rounded
//                 once to bfloat16
//   rows          one row per expert output, at its top-k slot, as it is
//   log_fmt_sums  the row of `sums`, in LogFMT-10: 1.25 B a channel where the values can be cast
//   log_fmt       the rows of `rows`, likewise
//   fp8_sums, fp8, mxfp8_sums, mxfp8: the same two kinds in e4m3 with scales, 1.03 B a channel
// Sums need the weights of the token. Where they did not travel with the dispatch and the receive
// is deferred, rows are sent in place of sums (CombineNoticeWord::kUnsummed): top_k rows per token
// instead of one per rank of it.
// A block takes a (source, token) at a time, in the order in which the dispatch left them. Where
// there are more blocks than pairs it takes some of its rows, or, in a joined launch (combine.cu),
// some channels of its sum.
//
// Waits: `combine_read` of all ranks for the use before last of this half. Where dispatches and
// combines take turns, it arrived earlier: this rank has received an operation that the others sent
// later. With sums whose weights did not travel, where the receive is not deferred, also the
// stamped weights of each token; this rank sends its own before it waits, so ranks do not wait for
// each other in a circle. Publishes: grants, a notice to every rank, the rows
// (self_signalling.cuh); with flags, after each row its flag.
// Memory order: rows, weights and notices are words that are their own signals. A flag follows a
// barrier of the threads that stored the row, in groups that mask ranks as a release at system
// scope.
//
// Measured: on two H200 (commit a24dd2b8, 112 pairs with the load of eight ranks), rows of 128
// tokens take 35 us and of 64 tokens 23: 338 GB/s for the second half, where bare stores reach 341.
// Rows in place of sums, 8 tokens: 9 us (commit 86ea83bc, 256 sends), of which an empty kernel
// takes 4.6. Other shapes: docs/decisions/self-signalling-rows.md.
#pragma once

#include "ep/cuda/device/vectors.cuh"
#include "ep/cuda/low_latency/device/grants.cuh"
#include "ep/cuda/low_latency/device/launch.cuh"
#include "ep/cuda/low_latency/device/topk_slots.cuh"
#include "ep/cuda/low_latency/formats/float8_encode.cuh"
#include "ep/cuda/low_latency/formats/logfmt_encode.cuh"

namespace shoal::ep::cuda::combine_send {

/// Threads that send rows: with one, two or kAhead chunks each, 7168 channels leave none idle.
constexpr std::uint32_t kThreads = 224;
static_assert(kThreads >= kMaxDeviceRanks);
/// Threads that send expert outputs encoded, a block of a row a warp. Sums have kThreads: 7168
/// channels are seven blocks, and a warp holds the sums of a block next to two rows of it.
constexpr std::uint32_t kEncodedThreads = 448;
/// Blocks per SM: as many as its registers allow.
constexpr std::int32_t kBlocksPerMultiprocessor = 2;
constexpr std::uint32_t kAhead = 4;  // chunks of an expert output that a thread has in flight

/// One (source, token) as its warps hold it: lanes have the outputs of the experts in their top-k
/// slots (slots.cuh).
template <int kPerLane>
struct CombineItem {
  HandlePair pair = {};
  const std::uint16_t* row[kPerLane] = {};  ///< the expert output in y; nullptr: none
  float weight[kPerLane] = {};
  /// The stamped weight at the time of the load, where weights come with the combine.
  std::uint64_t stamped[kPerLane] = {};
  NumberSet<kPerLane> pair_slots;  ///< those of the pair
  NumberSet<kPerLane> topk_slots;  ///< those with an expert output
  NumberSet<kPerLane> own_slots;   ///< those that this item sends
};

template <bool kCounts, int kPerLane>
class CombineSender {
 public:
  using Item = CombineItem<kPerLane>;

  __device__ CombineSender(const LowLatencyCombineSend& call, const BlockRange& blocks,
                           bool* masked)
      : call_(call),
        group_(call.group),
        blocks_(blocks),
        masked_(masked),
        epoch_(call.group.memory->combines_sent + 1),
        dispatch_epoch_(call.handle.header->epoch),
        pairs_(call.handle.header->pairs),
        slots_(static_cast<std::uint32_t>(call.group.ranks) *
               static_cast<std::uint32_t>(call.sizes.max_tokens)) {}

  /// False when the group has failed.
  __device__ bool enter() {
    const auto me = static_cast<std::int32_t>(threadIdx.x);
    if (blocks_.me == 0 && threadIdx.x >= blockDim.x - 32) {
      if (kCounts && lane_id() == 0)
        note_start(group_, KernelKind::low_latency_combine_send, epoch_,
                   RecordedOperation::low_latency_combine);
      begin();
      if (kCounts) add_last_send();
    }
    if (gives_weights()) give_weights();
    bool usable = true;
    if (me < group_.ranks) {
      std::uint64_t waited = 0;
      const bool failed = aborted(group_);  // in flight with the grant
      // The load of the grant does not wait for that of the epoch.
      const bool granted =
          wait_signal_or_mask(group_, group_.layout.combine_read, me, epoch_ > 2 ? epoch_ - 2 : 0,
                              Phase::low_latency_combine_grant, kCombineOperation,
                              kCounts && blocks_.me == 0 ? &waited : nullptr);
      if (kCounts && blocks_.me == 0)
        count_first_wait(group_, KernelKind::low_latency_combine_send, epoch_, me, waited);
      if (blocks_.me == 0)
        ptx::st_relaxed_sys_global(
            combine_notice(group_, me, epoch_, group_.me),
            flag() | (is_masked(group_, me) ? CombineNoticeWord::kLeftOut : 0));
      masked_[me] = is_masked(group_, me);
      usable = !failed && (granted || !aborted(group_));
    }
    usable = __syncthreads_and(usable) != 0;
    passed_ = pass_epoch(group_, KernelKind::low_latency_combine_send, false);
    return usable;
  }

  /// Loads everything but the weights, for which a wait may be necessary.
  __device__ Item load(std::int32_t number) const {
    Item item;
    const std::uint32_t pair = static_cast<std::uint32_t>(number) >> call_.split;
    // Loads beyond the end of the list, so that the load does not depend on its length.
    if (pair < slots_) {
      item.pair = call_.handle.pairs[pair];
      item.pair_slots = slots_of_pair<kPerLane>(call_.handle, pair, item.pair.topk_slots);
    }
    if (number >= items()) item.pair = {}, item.pair_slots = {};
    bool is_mine[kPerLane], has_row[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const std::uint32_t slot = number_of_lane(i), before = item.pair_slots.count_below(slot);
      is_mine[i] = item.pair_slots.has(slot) &&
                   ((static_cast<std::uint32_t>(number) ^ before) & (1u << call_.split) - 1) == 0;
    }
    item.own_slots = NumberSet<kPerLane>::vote(is_mine);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (is_mine[i]) {
        if (receives_weights())
          item.stamped[i] = ptx::ld_relaxed_sys_global(weight_at(item.pair, number_of_lane(i)));
        const auto row = static_cast<std::uint32_t>(
            call_.handle.rows[handle_index(item.pair, number_of_lane(i))]);
        // The row of a source that failed between the blocks of a receive may have no number.
        if (row < slots_ * static_cast<std::uint32_t>(group_.local_experts))
          item.row[i] =
              call_.y + row / slots_ * call_.expert_stride + row % slots_ * call_.row_stride;
      }
      has_row[i] = item.row[i] != nullptr;
    }
    item.topk_slots = NumberSet<kPerLane>::vote(has_row);
    return item;
  }

  __device__ void load_weights(Item& item) const {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (item.row[i] == nullptr) continue;
      item.weight[i] = call_.weights_travelled != 0
                           ? call_.handle.weights[handle_index(item.pair, number_of_lane(i))]
                           : wait_weight(item, i);
    }
  }

  __device__ std::int32_t items() const { return pairs_ << call_.split; }

  __device__ bool wanted(const Item& item) const {
    return item.own_slots.any() && !masked_[item.pair.source];
  }

  /// combine_row_index of a sum, and of the expert output of a top-k slot. A sum takes the place of
  /// its last top-k slot, where no other rank sends anything in any form.
  __device__ std::size_t sum_place(const Item& item) const {
    return combine_row_index(group_, call_.sizes, epoch_, item.pair.token, group_.me,
                             item.pair_slots.last(), 0);
  }
  __device__ std::size_t row_place(const Item& item, std::int32_t topk_slot) const {
    return combine_row_index(group_, call_.sizes, epoch_, item.pair.token, group_.me, topk_slot,
                             static_cast<std::int32_t>(item.pair_slots.count_below(
                                 static_cast<std::uint32_t>(topk_slot))));
  }

  __device__ std::byte* target(const Item& item, std::size_t place) const {
    return combine_row_at(group_, item.pair.source, place);
  }

  /// The expert output of the first of `slots`.
  __device__ static const uint4* row_of(const Item& item, const NumberSet<kPerLane>& slots) {
    return reinterpret_cast<const uint4*>(
        value_of(item.row, static_cast<std::uint32_t>(slots.first())));
  }
  __device__ static float weight_of(const Item& item, const NumberSet<kPerLane>& slots) {
    return value_of(item.weight, static_cast<std::uint32_t>(slots.first()));
  }

  /// Sends the part `part` of the parts into which blocks divide a sum. A thread has kRows expert
  /// outputs in flight, kChunks chunks of each, and waits for the weights only when the first are.
  template <std::uint32_t kChunks, std::uint32_t kRows>
  __device__ void send_sum(Item& item, std::uint32_t part) const {
    const std::uint32_t chunks = static_cast<std::uint32_t>(call_.sizes.hidden) / 8;
    bool weighted = false;
    auto* const out = reinterpret_cast<uint4*>(target(item, sum_place(item)));
    // A warp without a chunk skips the loop: no row depends on the weights that it would wait for.
    const std::uint32_t warp = threadIdx.x / 32 * 32;
    for (std::uint32_t first = part * kChunks * kThreads; first + warp < chunks;
         first += call_.parts * kChunks * kThreads) {
      float sums[kChunks][8] = {};
      for (NumberSet<kPerLane> left = item.topk_slots; left.any();) {
        uint4 data[kRows][kChunks];
        NumberSet<kPerLane> ahead = left;
#pragma unroll
        for (std::uint32_t r = 0; r < kRows; ++r, ahead = ahead.without_first()) {
          if (!ahead.any()) continue;
          load_chunks(data[r], row_of(item, ahead), first, chunks);
        }
        if (!weighted) load_weights(item);
        weighted = true;
#pragma unroll
        for (std::uint32_t r = 0; r < kRows; ++r, left = left.without_first()) {
          if (!left.any()) continue;
          const float weight = weight_of(item, left);
#pragma unroll
          for (std::uint32_t i = 0; i < kChunks; ++i) add(sums[i], data[r][i], weight);
        }
      }
      uint4 data[kChunks];
#pragma unroll
      for (std::uint32_t i = 0; i < kChunks; ++i) data[i] = Bfloat16Vector::narrow(sums[i]);
      store_chunks(out, data, first, chunks);
    }
  }

  __device__ void send_rows(const Item& item) const {
    const std::uint32_t chunks = static_cast<std::uint32_t>(call_.sizes.hidden) / 8;
    for (NumberSet<kPerLane> left = item.topk_slots; left.any(); left = left.without_first()) {
      const uint4* const row = row_of(item, left);
      for (std::uint32_t first = 0; first < chunks; first += kAhead * kThreads) {
        uint4 data[kAhead];
        load_chunks(data, row, first, chunks);
        store_chunks(reinterpret_cast<uint4*>(target(item, row_place(item, left.first()))), data,
                     first, chunks);
      }
    }
  }

  /// Sends every `share`th block of the item's rows, from number `first` on. A warp calls.
  template <CombineEncoding kEncoding, bool kWhole>
  __device__ void send_encoded(const Item& item, std::uint32_t first, std::uint32_t share) const {
    const CombineRow<kEncoding, kWhole> row(call_.sizes.hidden);
    const std::uint32_t blocks = row.blocks();
    for (NumberSet<kPerLane> left = item.topk_slots; left.any(); left = left.without_first()) {
      const uint4* const from = row_of(item, left);
      auto* const to =
          reinterpret_cast<std::uint32_t*>(target(item, row_place(item, left.first())));
      for (; first < blocks; first += share)
        send_block(row, first, load_block(row, first, from), to);
      first -= blocks;
    }
  }

  /// Sends the same blocks of the item's sum. Waits for the weights only when loads of the first
  /// row are in flight, and loads each further row while it adds the one before.
  template <CombineEncoding kEncoding, bool kWhole>
  __device__ void send_encoded_sum(Item& item, std::uint32_t first, std::uint32_t share) const {
    const CombineRow<kEncoding, kWhole> row(call_.sizes.hidden);
    const std::uint32_t blocks = row.blocks();
    bool weighted = false;
    auto* const to = reinterpret_cast<std::uint32_t*>(target(item, sum_place(item)));
    for (; first < blocks; first += share) {
      const auto load = [&](const NumberSet<kPerLane>& slots) {
        return load_block(row, first, row_of(item, slots));
      };
      BlockSum sum;
      BlockValues ahead = load(item.topk_slots);
      for (NumberSet<kPerLane> left = item.topk_slots; left.any(); left = left.without_first()) {
        const BlockValues values = ahead;
        const NumberSet<kPerLane> later = left.without_first();
        if (later.any()) ahead = load(later);
        if (!weighted) load_weights(item);
        weighted = true;
        sum.add(values, weight_of(item, left));
      }
      send_block(row, first, sum.rounded(ahead.count), to);
    }
  }

  /// Raises the flags of an item, after a barrier of the threads that stored its rows.
  /// Called by the warp of the flags.
  __device__ void send_flags(const Item& item) const {
    const bool sums = sends_sums();
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const std::uint32_t slot = number_of_lane(i);
      if (sums ? slot != 0 : !item.own_slots.has(slot)) continue;
      const std::size_t place =
          sums ? sum_place(item) : row_place(item, static_cast<std::int32_t>(slot));
      raise_row_flag(group_, combine_flag_at(group_, item.pair.source, place), flag());
    }
  }

  /// Copies the weights for a deferred receive. The last warp of each block calls, which has time
  /// while the others send.
  __device__ void keep_weights() const {
    const std::int32_t count = call_.tokens * group_.top_k;
    for (auto w = static_cast<std::int32_t>(blocks_.me * 32 + lane_id()); w < count;
         w += static_cast<std::int32_t>(blocks_.count * 32))
      call_.pending.weights[w] = call_.weights[w];
  }

  __device__ void end() const {
    if (kCounts && threadIdx.x == 0) note_end(group_, KernelKind::low_latency_combine_send, epoch_);
    end_kernel(group_, KernelKind::low_latency_combine_send, false, passed_, blocks_.count, [&] {
      group_.memory->combines_sent = epoch_;
      call_.pending.header->epoch = epoch_;
      __threadfence();
      *static_cast<volatile std::uint64_t*>(&call_.pending.header->serial) = call_.serial;
    });
  }

 private:
  /// Index of a top-k slot in the handle's arrays.
  __device__ std::size_t handle_index(const HandlePair& pair, std::uint32_t slot) const {
    return (static_cast<std::size_t>(pair.source) * call_.sizes.max_tokens + pair.token) *
               group_.top_k +
           slot;
  }

  __device__ std::uint64_t flag() const {
    return CombineNoticeWord{call_.form, call_.exact != 0, call_.weights_travelled != 0,
                             dispatch_epoch_}
               .word(epoch_) |
           (call_.unsummed != 0 ? CombineNoticeWord::kUnsummed : 0);
  }

  __device__ bool sends_sums() const { return is_sums(call_.form) && call_.unsummed == 0; }
  /// True if weights come with this combine. Ranks that send no sums give theirs to those that do.
  __device__ bool gives_weights() const {
    return is_sums(call_.form) && call_.weights_travelled == 0;
  }
  __device__ bool receives_weights() const { return gives_weights() && call_.unsummed == 0; }

  /// Tells all ranks that this combine has begun. A warp of the first block calls.
  __device__ void begin() const {
    const RowWait send = combine_row_wait(group_, Phase::low_latency_combine_grant, epoch_);
    begin_send(group_, combine_grants(group_), dispatch_grants(group_), send,
               [&](std::uint64_t left) {
                 const auto& layout = group_.layout;
                 const std::size_t shared = layout.own_combine_rows / 2,
                                   own = (layout.combine_places - layout.own_combine_rows) / 2;
                 fill_sentinel(combine_row_at(group_, group_.me, (left & 1) * shared),
                               shared * layout.combine_row_bytes);
                 fill_sentinel(
                     combine_row_at(group_, group_.me, layout.own_combine_rows + (left & 1) * own),
                     own * layout.combine_row_bytes);
               });
  }

  /// Adds to the record what is known once the send before has ended. A warp calls.
  __device__ void add_last_send() const {
    for (auto rank = static_cast<std::int32_t>(lane_id()); rank < group_.ranks; rank += 32) {
      std::uint64_t& longest = group_.record->weight_wait[(epoch_ - 1) & 1][rank];
      count_wait(group_, rank, longest);
      longest = 0;
    }
    if (lane_id() == 0) add_last_launch(group_, KernelKind::low_latency_combine_send, epoch_);
  }

  /// Sends each weight of this rank's tokens to the rank that sums with it. The half is free: this
  /// rank has received all combine rows that needed the weights of the use before last. The first
  /// blocks send them all, because every block waits for weights.
  __device__ void give_weights() const {
    constexpr std::uint32_t kGivers = 8;  // blocks
    const std::int32_t count = call_.tokens * group_.top_k;
    const std::uint32_t givers = min(blocks_.count, kGivers);
    for (auto w = static_cast<std::int32_t>(blocks_.me * blockDim.x + threadIdx.x);
         blocks_.me < givers && w < count; w += static_cast<std::int32_t>(givers * blockDim.x)) {
      const std::int32_t rank = known_rank(group_, call_.handle.ranks[w]);
      if (rank < 0) continue;
      ptx::st_relaxed_sys_global(combine_weights(group_, call_.sizes, rank, epoch_, group_.me) + w,
                                 stamped_weight(call_.weights[w], epoch_));
    }
  }

  /// Address at which the weight of a top-k slot arrives.
  __device__ const std::uint64_t* weight_at(const HandlePair& pair, std::uint32_t slot) const {
    return combine_weights(group_, call_.sizes, group_.me, epoch_, pair.source) +
           static_cast<std::size_t>(pair.token) * group_.top_k + slot;
  }

  /// A rank that combines in another form sends no weights; the receive reports the disagreement.
  __device__ float wait_weight(const Item& item, int turn) const {
    const HandlePair& pair = item.pair;
    if (is_epoch(item.stamped[turn], epoch_)) return cuda::weight_of(item.stamped[turn]);
    const std::uint64_t* const at = weight_at(pair, number_of_lane(turn));
    std::uint64_t word = ptx::ld_relaxed_sys_global(at);
    if (is_epoch(word, epoch_)) return cuda::weight_of(word);
    if (masked_[pair.source]) return 0;
    const std::uint64_t* const notice = combine_notice(group_, group_.me, epoch_, pair.source);
    std::uint64_t waited = 0, since = 0;
    std::uint32_t polls = 0;
    wait_or_mask(
        group_, pair.source, Phase::low_latency_combine_weights, kCombineOperation, epoch_,
        [&] {
          if (kCounts && ++polls == kCountedAfter && counts_weight_wait(item, turn))
            since = ptx::globaltimer();
          const std::uint64_t said = ptx::ld_relaxed_sys_global(notice);
          word = ptx::ld_relaxed_sys_global(at);
          return ahead_of(word, epoch_) >= 0 ||
                 (ahead_of(said, epoch_) >= 0 && !CombineNoticeWord::agree(said, flag()));
        },
        at, call_.longest_wait != nullptr ? &waited : nullptr);
    note_wait(call_.longest_wait, pair.source, waited);
    if (kCounts && since != 0)
      note_wait(group_.record->weight_wait[epoch_ & 1], pair.source, ptx::globaltimer() - since);
    return cuda::weight_of(word);
  }

  /// Polls after which a wait for a weight counts: every block has shorter ones where no rank is
  /// late, and two readings of the clock would delay it.
  static constexpr std::uint32_t kCountedAfter = 8;
  /// One lane of an item counts, because all of them wait for the same rank. Where warps have items
  /// of their own, each of them counts.
  __device__ bool counts_weight_wait(const Item& item, int turn) const {
    return (threadIdx.x < 32 || is_encoded(call_.form)) && item.topk_slots.any() &&
           number_of_lane(turn) == static_cast<std::uint32_t>(item.topk_slots.first());
  }

  template <CombineEncoding kEncoding, bool kWhole>
  __device__ static void send_block(const CombineRow<kEncoding, kWhole>& row, std::uint32_t block,
                                    const BlockValues& values, std::uint32_t* to) {
    if constexpr (kEncoding == CombineEncoding::log_fmt)
      send_log_fmt_block(row, block, values, to);
    else
      send_float8_block(row, block, values, to);
  }

  template <std::uint32_t kChunks>
  __device__ static void load_chunks(uint4 (&data)[kChunks], const uint4* row, std::uint32_t first,
                                     std::uint32_t chunks) {
#pragma unroll
    for (std::uint32_t i = 0; i < kChunks; ++i) {
      const std::uint32_t chunk = first + i * kThreads + threadIdx.x;
      data[i] = chunk < chunks ? __ldg(row + chunk) : uint4{};
    }
  }
  template <std::uint32_t kChunks>
  __device__ static void store_chunks(uint4* row, const uint4 (&data)[kChunks], std::uint32_t first,
                                      std::uint32_t chunks) {
#pragma unroll
    for (std::uint32_t i = 0; i < kChunks; ++i) {
      const std::uint32_t chunk = first + i * kThreads + threadIdx.x;
      if (chunk < chunks) store_row(row + chunk, data[i]);
    }
  }
  __device__ static void add(float (&sums)[8], const uint4& vector, float weight) {
    float values[8];
    Bfloat16Vector::widen(vector, values);
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] = numeric::accumulate(sums[i], weight, values[i]);
  }

  const LowLatencyCombineSend& call_;
  const DeviceGroup& group_;
  const BlockRange blocks_;
  bool* const masked_;
  const std::uint64_t epoch_, dispatch_epoch_;
  const std::int32_t pairs_;
  const std::uint32_t slots_;
  std::uint32_t passed_ = 0;  ///< pass_epoch
};

/// Separates rows from their flags. A warp of its own raises the flags, because the release of
/// groups that mask ranks waits until all stores before it have arrived, and the next row need not
/// wait for that. Each row has a barrier of its own in turn; all threads meet before a barrier is
/// used again.
template <std::uint32_t kRowThreads>
class RowsDone {
 public:
  /// Called by the threads of the row when they have stored it.
  __device__ void arrive() const { ptx::bar_arrive_any<kRowThreads + 32>(barrier()); }
  /// Called by the warp of the flags.
  __device__ void wait() const { ptx::bar_sync_any<kRowThreads + 32>(barrier()); }
  __device__ void next() {
    if (++count_ % kBarriers == 0) __syncthreads();
  }

 private:
  /// A block has 16: 0 is that of __syncthreads.
  static constexpr std::uint32_t kBarriers = 14;
  __device__ std::uint32_t barrier() const { return 1 + count_ % kBarriers; }
  std::uint32_t count_ = 0;
};

/// Threads of a block that send rows. The warp of the flags follows them.
constexpr std::uint32_t row_threads_of(CombineRowForm form) {
  return is_encoded(form) && !is_sums(form) ? kEncodedThreads : kThreads;
}
/// Threads of a block.
constexpr std::uint32_t threads_of(CombineRowForm form) {
  return row_threads_of(form) + 32;
}

/// The send. The `blocks` blocks call, of threads_of(kForm) threads; without flags also of more.
/// kWhole: with encoded rows, they consist of whole pieces. kCounts: counts(call.group). kParted:
/// blocks divide sums. kPerLane: as in slots.cuh.
template <CombineRowForm kForm, bool kWhole, bool kCounts, bool kParted, int kPerLane>
__device__ void send(const LowLatencyCombineSend& call, const BlockRange& blocks) {
  constexpr CombineEncoding kEncoding = encoding_of(kForm);
  constexpr std::uint32_t kRowThreads = row_threads_of(kForm);
  constexpr auto kWarps = static_cast<std::int32_t>(kRowThreads / 32);
  __shared__ bool masked[kMaxDeviceRanks];
  CombineSender<kCounts, kPerLane> sender(call, blocks, masked);
  // The first block, which also sends weights and notices, gets the last item.
  auto i = static_cast<std::int32_t>((blocks.me + blocks.count - 1) % blocks.count),
       step = static_cast<std::int32_t>(blocks.count), workers = 1;
  // Without flags no barrier follows a row, so warps take blocks of encoded rows by themselves:
  // `workers` of them share an item.
  const bool by_warp = is_encoded(kForm) && call.flags == 0;
  const auto warp = static_cast<std::int32_t>(threadIdx.x / 32);
  if (by_warp) {
    workers = static_cast<std::int32_t>(CombineRow<kEncoding, kWhole>(call.sizes.hidden).blocks());
    i += step * warp;
    step *= kWarps;
  } else if (kParted) {
    workers = static_cast<std::int32_t>(call.parts);
  }
  CombineItem<kPerLane> item =
      sender.load(i / workers);  // before the waits; later items, before the row of the last one
  if (sender.enter()) {
    if (threadIdx.x >= kRowThreads && call.keeps_weights != 0) sender.keep_weights();
    RowsDone<kRowThreads> done;
    for (; i < sender.items() * workers; i += step) {
      const CombineItem<kPerLane> next = i + step < sender.items() * workers
                                             ? sender.load((i + step) / workers)
                                             : CombineItem<kPerLane>{};
      if (threadIdx.x >= kRowThreads) {
        if (call.flags == 0) break;
        done.wait();
        if (sender.wanted(item)) sender.send_flags(item);
      } else {
        if (sender.wanted(item)) {
          if constexpr (kForm == CombineRowForm::sums)
            sender.template send_sum<kParted ? 1 : 2, kParted ? 8 : 4>(
                item, static_cast<std::uint32_t>(i % workers));
          else if constexpr (kForm == CombineRowForm::rows)
            sender.send_rows(item);
          else if constexpr (is_sums(kForm))
            sender.template send_encoded_sum<kEncoding, kWhole>(item, by_warp ? i % workers : warp,
                                                                by_warp ? workers : kWarps);
          else
            sender.template send_encoded<kEncoding, kWhole>(item, by_warp ? i % workers : warp,
                                                            by_warp ? workers : kWarps);
        }
        if (call.flags != 0) done.arrive();
      }
      if (call.flags != 0) done.next();
      item = next;
    }
  }
  sender.end();
}

/// The number of pairs if other ranks have as many tokens as this one; only the device knows the
/// actual number, up to most_pairs.
inline std::int64_t expected_pairs(const LowLatencyCombineSend& call) {
  return std::int64_t{call.group.ranks} * std::max(call.tokens, 1);
}

inline std::int64_t most_pairs(const LowLatencyCombineSend& call) {
  return std::int64_t{call.group.ranks} * call.sizes.max_tokens;
}

/// Divides the rows of a pair among `blocks`, some of which would have none: log2 of the number of
/// parts.
inline std::uint32_t split_of_pairs(const LowLatencyCombineSend& call, std::int32_t blocks) {
  const std::int64_t pairs = expected_pairs(call);
  std::uint32_t split = 0;
  while (1 << split < call.group.top_k && pairs << split < blocks &&
         most_pairs(call) << (split + 1) < kMaxLowLatencyRows)
    ++split;
  return split;
}

/// Completes `call`. Returns the number of blocks, at most `most`: one for each item that there may
/// be, and the first block, which takes longer to begin. Where this rank has few tokens and another
/// one many, the experts here have many rows (docs/decisions/low-latency-call-in-one-kernel.md).
inline std::uint32_t divide(LowLatencyCombineSend& call, std::int32_t most) {
  const CombineRowForm form = sent_form(call);
  call.split = is_sums(form) ? 0 : split_of_pairs(call, most);
  call.parts = 1;
  return static_cast<std::uint32_t>(
      std::min<std::int64_t>(most, (most_pairs(call) << call.split) + 1));
}

}  // namespace shoal::ep::cuda::combine_send
