// SPDX-License-Identifier: Apache-2.0
// combine_receive.cuh: the receive of a low-latency combine. It adds up the combine rows of each
// token in float32 and rounds once, or, unsummed, copies them to `out` in top-k order.
//
// Order of the sum, the same on every backend, so that results agree bit by bit; sums start at +0:
//   sums           the ranks' rows in the order of their last top-k slots. A rank whose notice says
//                  that it sends expert outputs instead: weight * row, top-k slots ascending,
//                  rounded to bfloat16, as if the rank had computed it
//   log_fmt_sums   likewise; decoded rows are rounded to bfloat16 before they are added
//   rows, log_fmt  weight * row, top-k slots ascending
// The forms in fp8 and mxfp8 are added as those in LogFMT-10.
//
// Moves within this GPU's memory: reads 2 B a channel and combine row (LogFMT-10: 1.25 B, e4m3:
// 1.03 B), writes one row per token, or per top-k slot. A block takes a token, a thread a chunk of
// the row, which waits for that chunk of the combine rows only; of encoded rows, a warp takes 512
// channels. Blocks divide a token where there are few, if rows are encoded or the launch is joined
// with its send (combine.cu). The first block has no token where other blocks can take them: it
// checks that all ranks combine in the same form.
//
// Waits: with sums whose weights did not travel with the dispatch, the notices of the ranks, which
// come before their rows; the words of the rows themselves (self_signalling.cuh); in groups that
// mask ranks, their flags. Publishes: the grant of the half, at the end, where
// the receive does not directly follow its send; otherwise the next send grants it. Memory order:
// words of rows are their own signals; flags are acquired at system scope before the row is loaded.
//
// Measured: with combine_send.cuh, see dispatch_send.cuh.
#pragma once

#include "ep/cuda/device/vectors.cuh"
#include "ep/cuda/low_latency/device/grants.cuh"
#include "ep/cuda/low_latency/device/launch.cuh"
#include "ep/cuda/low_latency/formats/encoded_rows.cuh"

namespace shoal::ep::cuda::combine_receive {

/// Threads of a block: two chunks each of a row of 7168 channels, or a warp for each piece.
constexpr std::uint32_t kThreads = 448;
/// State of the ranks as a block sees it.
struct RankStates {
  bool masked[kMaxDeviceRanks];
  /// CombineNoticeWord::kUnsummed, in groups without masks; there every rank is waited for anyway.
  bool unsummed[kMaxDeviceRanks];
};

template <bool kCounts, int kPerLane>
class CombineReceiver {
 public:
  __device__ CombineReceiver(const LowLatencyCombineReceive& call, const BlockRange& blocks,
                             const RankStates& ranks)
      : call_(call),
        group_(call.group),
        blocks_(blocks),
        ranks_(ranks),
        epoch_(call.group.memory->combines_received + 1),
        expected_(CombineNoticeWord{call.form, call.exact != 0, call.weights_travelled != 0,
                                    call.handle.header->epoch}
                      .word(epoch_)) {
    if (kCounts && blocks_.me == 0 && threadIdx.x == 0)
      note_start(group_, KernelKind::low_latency_combine_receive, epoch_,
                 RecordedOperation::low_latency_combine);
  }

  /// Fills `ranks`. A barrier of the block has to follow.
  __device__ void look_at_ranks(RankStates& ranks) const {
    for (auto rank = static_cast<std::int32_t>(threadIdx.x); rank < group_.ranks;
         rank += static_cast<std::int32_t>(blockDim.x)) {
      const bool asks = self_signalling(group_) && may_be_unsummed();
      // Loads the words of both halves, because the load of the epoch, which says which one counts,
      // is in flight.
      std::uint64_t early[2] = {};
      for (std::uint64_t half = 0; asks && half < 2; ++half)
        early[half] = ptx::ld_relaxed_sys_global(combine_notice(group_, group_.me, half, rank));
      const std::uint64_t said = (epoch_ & 1) != 0 ? early[1] : early[0];
      ranks.masked[rank] = is_masked(group_, rank);
      ranks.unsummed[rank] =
          asks && (is_epoch(said, epoch_) ? says_unsummed(said) : wait_for_notice(rank));
    }
  }

  /// Sets the ranks of the experts of this lane's top-k slots, or -1.
  __device__ void load_ranks(std::int32_t token, std::int32_t (&rank)[kPerLane]) const {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const auto slot = static_cast<std::int32_t>(number_of_lane(i));
      rank[i] = -1;
      if (token < call_.tokens && slot < group_.top_k)
        rank[i] = known_rank(
            group_, call_.handle.ranks[static_cast<std::size_t>(token) * group_.top_k + slot]);
    }
  }

  /// Waits for the combine rows of a token, as far as they have flags. With sums, the row of a rank
  /// is in its last top-k slot.
  __device__ TokenRows<kPerLane> wait(std::int32_t token,
                                      const std::int32_t (&rank)[kPerLane]) const {
    TokenRows<kPerLane> token_rows;
    const TopkSlots<kPerLane>& slot = token_rows.slot = make_topk_slots(rank);
    if (kCounts && threadIdx.x == 0)
      count_up(&low_latency_rows(group_).combined, std::uint64_t{slot.lasts.count()});
    const bool sums = is_sums(call_.form);
    bool awaited[kPerLane], unsummed[kPerLane], arrived[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      awaited[i] = slot.rank[i] >= 0 && !ranks_.masked[slot.rank[i]];
      unsummed[i] = false;
      if (awaited[i] && may_be_unsummed())
        unsummed[i] =
            self_signalling(group_) ? ranks_.unsummed[slot.rank[i]] : wait_for_notice(slot.rank[i]);
    }
    token_rows.unsummed = NumberSet<kPerLane>::vote(unsummed);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const std::uint32_t number = number_of_lane(i);
      const bool in_row = number < static_cast<std::uint32_t>(group_.top_k);
      token_rows.weight[i] = 1;  // of sums
      if (in_row && (!sums || unsummed[i]) && call_.weights != nullptr)
        token_rows.weight[i] =
            call_.weights[static_cast<std::size_t>(token) * group_.top_k + number];
      token_rows.row[i] = 0;
      arrived[i] = false;
      if (!awaited[i] || (sums && !unsummed[i] && !slot.last[i])) continue;
      const std::size_t index = combine_row_index(group_, call_.sizes, epoch_, token, slot.rank[i],
                                                  static_cast<std::int32_t>(number),
                                                  sums && !unsummed[i] ? 0 : slot.index_of_rank[i]);
      token_rows.row[i] =
          static_cast<std::uint32_t>(index * (group_.layout.combine_row_bytes / sizeof(uint4)));
      arrived[i] = rows_have_no_flags() ||
                   wait_for_row(slot.rank[i], combine_flag_at(group_, group_.me, index));
      if (rows_have_no_flags() && measures()) measure(slot.rank[i], token_rows.row[i]);
    }
    token_rows.arrived = NumberSet<kPerLane>::vote(arrived);
    return token_rows;
  }

  /// True if the receive polls the rows themselves.
  __device__ bool rows_have_no_flags() const { return self_signalling(group_); }

  __device__ std::uint64_t epoch() const { return epoch_; }
  __device__ RowWait row_wait() const {
    return combine_row_wait(group_, Phase::low_latency_combine_receive, epoch_);
  }

  __device__ uint4* chunk_at(std::uint32_t row, std::uint32_t chunk) const {
    return reinterpret_cast<uint4*>(group_.block[group_.me] + group_.layout.combine_rows) + row +
           chunk;
  }
  __device__ uint4* out_row(std::int64_t row) const {
    return reinterpret_cast<uint4*>(call_.out + static_cast<std::size_t>(row) * call_.sizes.hidden);
  }

  __device__ void pass() {
    passed_ = pass_epoch(group_, KernelKind::low_latency_combine_receive, ordered());
  }

  __device__ void end() const {
    if (kCounts && threadIdx.x == 0)
      note_end(group_, KernelKind::low_latency_combine_receive, epoch_);
    end_kernel(
        group_, KernelKind::low_latency_combine_receive, ordered(), passed_, blocks_.count, [&] {
          for (auto rank = static_cast<std::int32_t>(lane_id()); rank < group_.ranks; rank += 32) {
            if (call_.grants != 0) grant_at_end(group_, combine_grants(group_), rank, epoch_);
            if (call_.wait_ns == nullptr) continue;
            call_.wait_ns[rank] += static_cast<std::int64_t>(call_.longest_wait[rank]);
            call_.longest_wait[rank] = 0;
          }
          if (lane_id() == 0) group_.memory->combines_received = epoch_;
        });
  }

  /// Reports ranks that disagree. Their rows differ from what this rank expects, so no wait for
  /// them may continue; the half is marked as dirty.
  __device__ __noinline__ void check_agreement() const {
    for (auto rank = static_cast<std::int32_t>(threadIdx.x);
         self_signalling(group_) && rank < group_.ranks;
         rank += static_cast<std::int32_t>(blockDim.x)) {
      const std::uint64_t* const notice = combine_notice(group_, group_.me, epoch_, rank);
      std::uint64_t said = 0, waited = 0;
      const bool came = wait_or_mask(
          group_, rank, Phase::low_latency_combine_receive, kCombineOperation, epoch_,
          [&] { return ahead_of(said = ptx::ld_relaxed_sys_global(notice), epoch_) >= 0; }, notice,
          kCounts ? &waited : nullptr);
      if (kCounts)
        count_first_wait(group_, KernelKind::low_latency_combine_receive, epoch_, rank, waited);
      if (!came || CombineNoticeWord::agree(said, expected_)) continue;
      group_.memory->dirty_combine[epoch_ & 1] = epoch_;
      report_mismatch(rank, said);
    }
    if (kCounts && threadIdx.x == 0)
      add_last_launch(group_, KernelKind::low_latency_combine_receive, epoch_);
  }

 private:
  __device__ bool ordered() const { return call_.grants != 0 || call_.wait_ns != nullptr; }
  __device__ bool may_be_unsummed() const {
    return is_sums(call_.form) && call_.weights_travelled == 0;
  }

  /// Waits for the notice of a rank: whether it sends expert outputs instead of sums.
  __device__ __noinline__ bool wait_for_notice(std::int32_t rank) const {
    const std::uint64_t* const notice = combine_notice(group_, group_.me, epoch_, rank);
    std::uint64_t said = 0, waited = 0;
    wait_or_mask(
        group_, rank, Phase::low_latency_combine_receive, kCombineOperation, epoch_,
        [&] { return ahead_of(said = ptx::ld_relaxed_sys_global(notice), epoch_) >= 0; }, notice,
        call_.wait_ns != nullptr ? &waited : nullptr);
    note_wait(call_.longest_wait, rank, waited);
    return is_epoch(said, epoch_) && says_unsummed(said);
  }
  __device__ static bool says_unsummed(std::uint64_t said) {
    return (said & CombineNoticeWord::kUnsummed) != 0;
  }

  /// For the statistics: how long the last word of a row takes. One warp measures.
  __device__ bool measures() const { return call_.wait_ns != nullptr && threadIdx.x < 32; }
  __device__ __noinline__ void measure(std::int32_t rank, std::uint32_t row) const {
    const auto* const word = reinterpret_cast<const std::uint32_t*>(chunk_at(row, 0)) +
                             last_word_of(call_.form, call_.sizes.hidden);
    const RowWait rows = row_wait();
    std::uint64_t waited = 0;
    wait_or_mask(
        group_, rank, rows.phase, rows.operation, epoch_,
        [&] { return ptx::ld_relaxed_sys_global(word) != kSentinel || disagreed(rows); },
        signal_at(group_, group_.me, group_.layout.failed, rank), &waited);
    note_wait(call_.longest_wait, rank, waited);
  }

  __device__ void report_mismatch(std::int32_t rank, std::uint64_t said) const {
    report_fault(group_, Fault::mismatch, Phase::low_latency_combine_receive, kCombineOperation,
                 rank, epoch_, said, 0, static_cast<std::int64_t>(expected_), 0, false);
  }

  __device__ __noinline__ bool wait_for_row(std::int32_t rank, const std::uint64_t* flag) const {
    const std::uint64_t* const notice = combine_notice(group_, group_.me, epoch_, rank);
    std::uint64_t said = 0, waited = 0;
    bool here = false;
    const bool came = wait_or_mask(
        group_, rank, Phase::low_latency_combine_receive, kCombineOperation, epoch_,
        [&] {
          said = ptx::ld_relaxed_sys_global(notice);
          here = CombineNoticeWord::agree(ptx::ld_acquire_sys_global(flag), expected_);
          // A rank that combines in another form, or has masked this one, will not send the row.
          return here ||
                 (ahead_of(said, epoch_) >= 0 && !CombineNoticeWord::agree(said, expected_));
        },
        flag, call_.wait_ns != nullptr ? &waited : nullptr);
    note_wait(call_.longest_wait, rank, waited);
    if (!came || here) return came;
    if (is_epoch(said, epoch_) && (said & CombineNoticeWord::kLeftOut) == 0)
      report_mismatch(rank, said);
    else
      wait_failed(group_, Fault::peer_failed, Phase::low_latency_combine_receive, kCombineOperation,
                  rank, epoch_, static_cast<std::uint32_t>(said));
    return false;
  }

  const LowLatencyCombineReceive& call_;
  const DeviceGroup& group_;
  const BlockRange blocks_;
  const RankStates& ranks_;
  const std::uint64_t epoch_, expected_;
  std::uint32_t passed_ = 0;  ///< pass_epoch
};

/// Sums of eight channels. With levels, rows are grouped by rank and each group is rounded to
/// bfloat16 before it is added: `level` is the sum of the current group.
struct RowSum {
  float total[8] = {}, level[8] = {};

  __device__ void add(const float (&values)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) total[i] = numeric::add(total[i], values[i]);
  }
  __device__ void add_weighted(const float (&values)[8], float weight, bool levels) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (levels)
        level[i] = numeric::accumulate(level[i], weight, values[i]);
      else
        total[i] = numeric::accumulate(total[i], weight, values[i]);
    }
  }
  __device__ void end_level() {
    add_vector<Bfloat16Vector>(total, Bfloat16Vector::narrow(level));
#pragma unroll
    for (float& value : level) value = 0;
  }
};

/// Rows that a thread has in flight; expert outputs in place of sums: in a receive right after
/// its send, and in a deferred one.
constexpr int kRowsAhead = 8, kFewAhead = 2, kManyAhead = 4;

/// Addition of bfloat16 rows: each as it is; weighted; weighted and grouped by rank; or none: rows
/// are copied, each to its top-k slot.
enum class RowAddition : std::uint8_t { plain, weighted, by_rank, none };

/// Adds up bfloat16 rows, kAhead of them in flight. `out`: the first row of the token.
template <RowAddition kAddition, int kAhead, class Receiver, int kPerLane>
__device__ void add_rows(const Receiver& collector, const LowLatencyCombineReceive& call,
                         const TokenRows<kPerLane>& token_rows, std::uint32_t part, uint4* out) {
  using Set = NumberSet<kPerLane>;
  constexpr bool kByRank = kAddition == RowAddition::by_rank;
  constexpr int kRankBits = 8;
  static_assert(kMaxDeviceRanks <= 1 << kRankBits && kAhead * kRankBits <= 64);
  const auto chunks = static_cast<std::uint32_t>(call.sizes.hidden) / 8;
  // Rows are the numbers in `all`: top-k slots, or positions in the order by rank.
  std::uint32_t order[kPerLane];
  Set all = token_rows.arrived;
  if constexpr (kByRank) {
    order_rows(token_rows, true, order);
    if (all.any()) all = Set::below(all.count());
  }
  const auto slot_of = [&](const Set& rows) {
    const auto row = static_cast<std::uint32_t>(rows.first());
    if constexpr (kByRank)
      return value_of(order, row);
    else
      return row;
  };
  for (std::uint32_t first = part * blockDim.x + threadIdx.x / 32 * 32; first < chunks;
       first += call.parts * blockDim.x) {
    const std::uint32_t chunk = first + lane_id();
    RowSum sum;
    bool came = true;
    for (Set left = all; left.any();) {
      std::uint32_t rows[kAhead], wanted = 0;
      Set ahead = left;
      std::uint64_t ranks = 0;  // packed, because the wait of one lane cannot shuffle
#pragma unroll
      for (int i = 0; i < kAhead; ++i, ahead = ahead.without_first()) {
        if (!ahead.any()) continue;
        const std::uint32_t slot = slot_of(ahead) & ~kEndsRank;
        rows[i] = value_of(token_rows.row, slot);
        ranks |= static_cast<std::uint64_t>(value_of(token_rows.slot.rank, slot))
                 << (i * kRankBits);
        if (chunk < chunks) wanted |= 1u << i;
      }
      uint4 data[kAhead];
      const auto at = [&](int i) { return collector.chunk_at(rows[i], chunk); };
      came = take(call.group, collector.row_wait(), wanted, data, at,
                  [&](int i) {
                    return static_cast<std::int32_t>(ranks >> (i * kRankBits) &
                                                     ((1u << kRankBits) - 1));
                  }) &&
             came;
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kAhead; ++i, left = left.without_first()) {
        if (!left.any()) continue;
        if constexpr (kAddition == RowAddition::none) {
          if (chunk < chunks && came) out[std::size_t{slot_of(left)} * chunks + chunk] = data[i];
          continue;
        }
        float values[8];
        Bfloat16Vector::widen(data[i], values);
        if constexpr (kAddition == RowAddition::plain) {
          sum.add(values);
        } else {
          const std::uint32_t slot = slot_of(left);
          sum.add_weighted(values, value_of(token_rows.weight, slot % (32 * kPerLane)), kByRank);
          if (kByRank && (slot & kEndsRank) != 0) sum.end_level();
        }
      }
    }
    if (chunk >= chunks) continue;
    if constexpr (kAddition == RowAddition::none) {
      Set empty = Set::below(static_cast<std::uint32_t>(call.group.top_k)) & ~token_rows.arrived;
      for (; empty.any(); empty = empty.without_first())
        out[std::size_t{slot_of(empty)} * chunks + chunk] = {};
    } else if (came) {
      out[chunk] = Bfloat16Vector::narrow(sum.total);
    }
  }
}

/// Reduces `arrived` to the rows that all warps have seen: they can differ for a rank that is being
/// masked. All threads of the block call.
template <int kPerLane>
__device__ void agree(TokenRows<kPerLane>& token_rows) {
  __shared__ std::uint32_t arrived[kPerLane];
  __syncthreads();
  if (threadIdx.x < kPerLane) arrived[threadIdx.x] = kWarp;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kPerLane; ++w)
    if (lane_id() == 0) atomicAnd(&arrived[w], token_rows.arrived.words[w]);
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kPerLane; ++w) token_rows.arrived.words[w] = arrived[w];
}

/// For encoded rows: blocks that divide a token, as many as `most` allows. With statistics a block
/// takes whole tokens, because it measures before any of its warps takes a word.
inline std::uint32_t parts_of_token(const LowLatencyCombineReceive& call, std::uint32_t pieces,
                                    std::int32_t most) {
  if (call.wait_ns != nullptr) return 1;
  const auto parts = static_cast<std::uint32_t>((most - 1) / std::max(call.tokens, 1));
  return std::clamp(parts, 1u, pieces);
}

/// The receive. The blocks of `all` call. kVariant: with sums, rows in flight of ranks that send
/// expert outputs in place of them. More of them take registers from the sums, so only deferred
/// receives, which mostly get such rows, have many. With rows, whether they are copied (unsummed).
/// With encoded rows, whether they consist of whole pieces. kCounts: counts(call.group). kPerLane:
/// as in slots.cuh.
template <CombineRowForm kForm, int kVariant, bool kCounts, int kPerLane>
__device__ void receive(const LowLatencyCombineReceive& call, const BlockRange& all) {
  __shared__ RankStates ranks;
  const DeviceGroup& group = call.group;
  CombineReceiver<kCounts, kPerLane> collector(call, all, ranks);
  const auto blocks = static_cast<std::int32_t>(all.count),
             parts = static_cast<std::int32_t>(call.parts);
  auto item = (static_cast<std::int32_t>(all.me) + blocks - 1) % blocks;
  std::int32_t rank[kPerLane];
  collector.load_ranks(item / parts, rank);  // before the wait
  collector.look_at_ranks(ranks);
  __syncthreads();
  collector.pass();
  if (all.me == 0) collector.check_agreement();
  for (; item / parts < call.tokens; item += blocks) {
    const std::int32_t token = item / parts;
    const auto part = static_cast<std::uint32_t>(item % parts);
    TokenRows<kPerLane> token_rows = collector.wait(token, rank);
    collector.load_ranks((item + blocks) / parts, rank);
    // With statistics, one warp must have measured before other warps take the words.
    if (group.mask_failed != 0 || call.wait_ns != nullptr) agree(token_rows);
    // A compile-time choice where rows are not encoded.
    const bool unsummed =
        kForm == CombineRowForm::rows ? kVariant != 0 : !is_sums(kForm) && call.unsummed != 0;
    uint4* const out =
        collector.out_row(unsummed ? std::int64_t{token} * group.top_k : std::int64_t{token});
    if constexpr (is_encoded(kForm)) {
      const EncodedRows<encoding_of(kForm), kVariant != 0, is_sums(kForm), kPerLane> rows(
          group, collector.epoch(), token_rows, collector.chunk_at(0, 0), call.sizes.hidden,
          unsummed);
      const std::uint32_t warps = blockDim.x / 32;
      for (std::uint32_t piece = part * warps + threadIdx.x / 32; piece < rows.pieces();
           piece += call.parts * warps)
        rows.add_piece(piece, out);
    } else if constexpr (kForm == CombineRowForm::rows) {
      add_rows<kVariant != 0 ? RowAddition::none : RowAddition::weighted, kRowsAhead>(
          collector, call, token_rows, part, out);
    } else if (!token_rows.unsummed.any()) {
      add_rows<RowAddition::plain, kRowsAhead>(collector, call, token_rows, part, out);
    } else {
      add_rows<RowAddition::by_rank, kVariant>(collector, call, token_rows, part, out);
    }
  }
  collector.end();
}

/// The blocks of a launch and their threads.
struct Division {
  std::uint32_t blocks, threads;
};

/// Completes `call`, for at most `most` blocks on this many multiprocessors.
inline Division divide(LowLatencyCombineReceive& call, std::int32_t most,
                       std::int32_t multiprocessors) {
  const auto chunks = static_cast<std::uint32_t>(call.sizes.hidden) / 8;
  // The fewest rounds of chunks, and the fewest threads for that number of rounds.
  const std::uint32_t rounds = (chunks + kThreads - 1) / kThreads;
  std::uint32_t threads = ((chunks + rounds - 1) / rounds + 31) / 32 * 32;
  call.parts = 1;
  if (is_encoded(call.form)) {
    const LogfmtRow<false> row(call.sizes.hidden);  // of as many pieces as in every encoding
    call.parts = parts_of_token(call, row.pieces, std::min(most, multiprocessors));
    threads = std::min((row.pieces + call.parts - 1) / call.parts * 32, kThreads);
  }
  return {static_cast<std::uint32_t>(
              std::min(call.tokens * static_cast<std::int32_t>(call.parts) + 1, most)),
          threads};
}

}  // namespace shoal::ep::cuda::combine_receive
