// SPDX-License-Identifier: Apache-2.0
// logfmt_decode.cuh: a block of threads adds up the LogFMT-10 rows of a token.
//
// A warp has a piece of all rows, so it computes the scales of eight rows at once, one a lane, and
// sums in registers. Words go through shared memory, because a lane needs five or eight consecutive
// ones: by bulk copies a few rows ahead where all pieces are aligned, else through registers one
// row ahead.
#pragma once

#include "ep/cuda/device/tma.cuh"
#include "ep/cuda/device/vectors.cuh"
#include "ep/cuda/low_latency/logfmt.cuh"
#include "ep/cuda/low_latency/self_signalling.cuh"
#include "ep/cuda/low_latency/token_rows.cuh"

namespace shoal::ep::cuda {

/// Rows ahead by bulk copies, as many as fit into static shared memory.
inline constexpr std::uint32_t kLogfmtBulkRows = 3;
/// Whether all pieces of rows of so many channels start at multiples of 16 bytes.
SHOAL_HOST_DEVICE constexpr bool logfmt_pieces_are_aligned(std::uint32_t channels) {
  return channels % kLogfmtPiece == 0;
}

/// What the warps of a block share.
template <bool kBulk>
struct LogfmtDecoding {
  static constexpr std::uint32_t kWords =
      kBulk ? kLogfmtBulkRows * kLogfmtRawWords : kLogfmtStagedWords;
  std::uint64_t castable[kMaxTopK];  ///< bits of the groups of a window, of row i of the sum
  std::uint64_t barriers[kLogfmtWarps][kBulk ? kLogfmtBulkRows : 1];
  alignas(16) std::uint32_t words[kLogfmtWarps][kWords];
};

template <bool kBulk>
__device__ LogfmtDecoding<kBulk>& logfmt_decoding() {
  __shared__ LogfmtDecoding<kBulk> shared;
  return shared;
}

/// Bulk copies of rows into shared memory, by one warp, over the life of a kernel (sm_90 and
/// later).
class LogfmtBulkRows {
 public:
#if __CUDA_ARCH__ >= 900
  __device__ void open(LogfmtDecoding<true>& shared) {
    barriers_ = shared_address(shared.barriers[threadIdx.x / 32]);
    words_ = shared_address(shared.words[threadIdx.x / 32]);
    if (lane_id() == 0) {
      for (std::uint32_t slot = 0; slot < kLogfmtBulkRows; ++slot)
        ptx::mbarrier_init(barrier(slot), 1);
      barriers_ready();
    }
    __syncwarp();
  }

  /// The calling lane starts the copy of a row; what its slot held before has been read.
  __device__ void load(std::uint32_t row, const std::uint32_t* from, std::uint32_t words) const {
    const std::uint32_t slot = row % kLogfmtBulkRows;
    barrier_expect(barrier(slot), words * 4);
    bulk_load(words_ + slot * kLogfmtRawWords * 4, from, words * 4, barrier(slot));
  }
  /// Waits for a row, in order. The whole warp calls.
  __device__ void wait(std::uint32_t row) {
    const std::uint32_t slot = row % kLogfmtBulkRows;
    barrier_wait(barrier(slot), parities_ >> slot & 1);
    parities_ ^= 1u << slot;
  }

 private:
  __device__ SharedAddress barrier(std::uint32_t slot) const {
    return barriers_ + slot * sizeof(std::uint64_t);
  }

  SharedAddress barriers_ = 0, words_ = 0;
  std::uint32_t parities_ = 0;
#else
  __device__ void open(LogfmtDecoding<true>&) {}
  __device__ void load(std::uint32_t, const std::uint32_t*, std::uint32_t) const {}
  __device__ void wait(std::uint32_t) {}
#endif
};

/// Sixteen channels of a sum. With levels, rows are grouped by rank and each group is rounded to
/// bfloat16 before it is added to the total.
struct LogfmtUnitSum {
  float level[2][8] = {}, total[2][8] = {};

  __device__ void add(std::uint32_t i, float weight, float value) {
    level[i / 8][i % 8] = numeric::accumulate(level[i / 8][i % 8], weight, value);
  }
  __device__ void end_level() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      add_vector<Bfloat16Vector>(total[half], Bfloat16Vector::narrow(level[half]));
#pragma unroll
      for (float& value : level[half]) value = 0;
    }
  }
};

template <bool kNormal>
__device__ void add_unit(LogfmtUnitSum& sum, const LogfmtBits& bits, std::uint32_t count,
                         float weight, float log_min, float step) {
  const std::uint32_t signs = bits.signs(count);
#pragma unroll
  for (std::uint32_t i = 0; i < kLogfmtUnit; ++i) {
    const std::uint32_t sign = signs << (31 - i) & numeric::kSignBit, code = bits.code(i);
    float value;
    if constexpr (kNormal) {
      // Kept, or the compiler branches around the computation for code 0.
      const std::uint32_t magnitude = ptx::keep_in_register(
          __float_as_uint(numeric::logfmt_magnitude_normal(code, log_min, step)));
      value = __uint_as_float((code == 0 ? 0u : magnitude) | sign);
    } else {
      value = numeric::decode_logfmt(code, sign != 0, log_min, step);
    }
    sum.add(i, weight, value);
  }
}

/// The rows of a token. All threads of a block call: a warp for each piece of the row, at most
/// kLogfmtWarps.
template <bool kBulk>
class LogfmtRows {
 public:
  /// `clears`: words are replaced by the sentinel when they have been read.
  __device__ LogfmtRows(const TokenRows& token_rows, std::byte* rows, std::uint32_t channels,
                        bool by_rank, bool clears, LogfmtDecoding<kBulk>& shared,
                        LogfmtBulkRows* bulk)
      : row_(channels),
        by_rank_(by_rank),
        clears_(clears),
        shared_(shared),
        bulk_(bulk),
        me_(lane_id()),
        piece_(threadIdx.x / 32) {
    count_ = static_cast<std::uint32_t>(__popc(token_rows.arrived));
    const std::uint32_t order = order_rows(token_rows, by_rank);
    const auto slot = static_cast<int>(order & 31u);
    ends_ = __ballot_sync(kWarp, (order & kEndsRank) != 0);
    weight_ = __shfl_sync(kWarp, token_rows.weight, slot);
    at_ = reinterpret_cast<std::uint32_t*>(
        rows + std::size_t{__shfl_sync(kWarp, token_rows.row, slot)} * sizeof(uint4));
  }

  __device__ void add_up(uint4* out) {
    std::uint32_t window = row_.groups;  // of row `lane`: words before the window
    for (std::uint32_t start = 0; start < row_.hidden; start += kLogfmtWindow) {
      look_at_groups(start);
      const std::uint32_t group = load_group(start, 0);
      __syncthreads();
      const LogfmtPieces pieces(row_, me_ < count_ ? shared_.castable[me_] : 0);
      const std::uint32_t words = window + pieces.start(piece_);
      const std::uint32_t cast = __ballot_sync(kWarp, pieces.is_cast(piece_));
      window += pieces.start(kLogfmtWarps);
      const std::uint32_t here = row_.channels_from(start + piece_ * kLogfmtPiece, kLogfmtPiece);
      if (here != 0) add_piece(start, here, words, cast, group, out);
      __syncthreads();  // all warps have read the groups
      if (clears_) clear_groups(start);
    }
  }

 private:
  __device__ std::uint32_t* row_at(std::uint32_t i) const {
    return reinterpret_cast<std::uint32_t*>(
        __shfl_sync(kWarp, reinterpret_cast<unsigned long long>(at_), static_cast<int>(i)));
  }

  /// Calls f(i, group, word) for each group of the window, a row a warp at a time.
  template <typename F>
  __device__ void for_groups(std::uint32_t start, F&& f) const {
    for (std::uint32_t i = piece_; i < count_; i += blockDim.x / 32) {
      std::uint32_t* const row = row_at(i) + start / numeric::kGroupChannels;
#pragma unroll
      for (std::uint32_t group = me_; group < 64; group += 32)
        f(i, group,
          group < kLogfmtWindowGroups && start / numeric::kGroupChannels + group < row_.groups
              ? row + group
              : nullptr);
    }
  }

  __device__ void look_at_groups(std::uint32_t start) const {
    for_groups(start, [&](std::uint32_t i, std::uint32_t group, const std::uint32_t* word) {
      const std::uint64_t bits = __ballot_sync(
          kWarp, word == nullptr || numeric::logfmt_castable(logfmt_group(load_word(word))));
      if (me_ != 0) return;
      if (group < 32)
        shared_.castable[i] = bits;
      else
        shared_.castable[i] |= bits << 32;
    });
  }
  __device__ void clear_groups(std::uint32_t start) const {
    for_groups(start, [](std::uint32_t, std::uint32_t, std::uint32_t* word) {
      if (word != nullptr) *word = kSentinel;
    });
  }

  /// Lane 4 j + g gets group g of this warp's piece of row first + j.
  __device__ std::uint32_t load_group(std::uint32_t start, std::uint32_t first) const {
    const std::uint32_t i = first + me_ / kLogfmtPieceGroups;
    const std::uint32_t* const row = row_at(i % 32);
    const std::uint32_t group =
        start / numeric::kGroupChannels + piece_ * kLogfmtPieceGroups + me_ % kLogfmtPieceGroups;
    return i < count_ && group < row_.groups ? load_word(row + group) : 0;
  }

  /// Words of this warp's piece that a lane has at a time: of a piece that stays bfloat16, and of
  /// one that is cast.
  static constexpr std::uint32_t kRawWords = kLogfmtRawWords / 32,
                                 kCastWords = kLogfmtCastWords / 32;

  /// Loads the words of this warp's piece of a row, `here` channels, and clears them.
  __device__ void fetch(std::uint32_t (&words)[kRawWords], std::uint32_t* at, std::uint32_t here,
                        bool is_cast) const {
    const std::uint32_t most = is_cast ? logfmt_words(here) : here / 2;
#pragma unroll
    for (std::uint32_t k = 0; k < kRawWords; ++k) {
      const std::uint32_t word = me_ + 32 * k;
      words[k] = word < most ? load_word(at + word) : 0;
    }
    if (!clears_) return;
#pragma unroll
    for (std::uint32_t k = 0; k < kRawWords; ++k)
      if (me_ + 32 * k < most) at[me_ + 32 * k] = kSentinel;
  }

  /// Puts fetched words where the lanes that need them find them.
  __device__ void stage(const std::uint32_t (&words)[kRawWords], bool is_cast) const {
    __syncwarp();
#pragma unroll
    for (std::uint32_t k = 0; k < kRawWords; ++k) {
      const std::uint32_t word = me_ + 32 * k;
      if (!is_cast || k < kCastWords)
        shared_.words[piece_][is_cast ? word : staged_raw_word(word)] = words[k];
    }
    __syncwarp();
  }

  /// Lane i starts the copy of this warp's piece of row i, if row i is one of `count` from `first`.
  __device__ void copy_rows(std::uint32_t first, std::uint32_t count, std::uint32_t here,
                            std::uint32_t words, std::uint32_t cast) const {
    if (me_ - first < count && me_ < count_)
      bulk_->load(me_, at_ + words, (cast >> me_ & 1) != 0 ? logfmt_words(here) : here / 2);
  }
  /// Clears this warp's piece of a row.
  __device__ void clear(std::uint32_t* at, std::uint32_t here, bool is_cast) const {
    const std::uint32_t most = is_cast ? logfmt_words(here) : here / 2;
#pragma unroll
    for (std::uint32_t k = 0; k < kRawWords; ++k)
      if (me_ + 32 * k < most) at[me_ + 32 * k] = kSentinel;
  }

  /// Word `w` of a piece that is not cast, in shared memory.
  __device__ std::uint32_t raw_word(std::uint32_t slot, std::uint32_t w) const {
    return shared_.words[piece_][kBulk ? slot * kLogfmtRawWords + w : staged_raw_word(w)];
  }
  /// Adds this warp's piece of a row that is not cast: the lane's words, eight or four.
  __device__ void add_raw(LogfmtUnitSum& sum, std::uint32_t slot, std::uint32_t count,
                          float weight) const {
#pragma unroll
    for (std::uint32_t k = 0; k < kLogfmtUnit / 2; ++k) {
      if (2 * k >= count) continue;
      const std::uint32_t pair = raw_word(slot, me_ * (kLogfmtUnit / 2) + k);
      sum.add(2 * k, weight, __uint_as_float(pair << 16));
      sum.add(2 * k + 1, weight, __uint_as_float(pair & 0xffff'0000u));
    }
  }

  /// Adds up a piece with `here` channels. Lane i: `words` before the piece in row i. `cast`: a bit
  /// for each row. `group`: load_group of the first rows.
  __device__ void add_piece(std::uint32_t start, std::uint32_t here, std::uint32_t words,
                            std::uint32_t cast, std::uint32_t group, uint4* out) const {
    constexpr std::uint32_t kRowsAtOnce = 32 / kLogfmtPieceGroups;
    const std::uint32_t first = start + threadIdx.x * kLogfmtUnit,
                        count = row_.channels_from(first, kLogfmtUnit);
    const auto at = [&](std::uint32_t i) {
      return row_at(i) + __shfl_sync(kWarp, words, static_cast<int>(i));
    };
    LogfmtUnitSum sum;
    std::uint32_t ahead[kRawWords];
    if constexpr (kBulk)
      copy_rows(0, kLogfmtBulkRows, here, words, cast);
    else if (count_ > 0)
      fetch(ahead, at(0), here, (cast & 1) != 0);
    numeric::LogfmtLevels levels{};
    std::uint32_t normal = 0;
#pragma unroll 1
    for (std::uint32_t i = 0; i < count_; ++i) {
      const std::uint32_t j = i % kRowsAtOnce;
      if (j == 0) {
        if (i > 0) group = load_group(start, i);
        levels = numeric::logfmt_levels(logfmt_group(group));
        normal = __ballot_sync(kWarp, group == 0 || levels.log_min >= numeric::kLogfmtNormal);
      }
      const auto of_group = static_cast<int>(j * kLogfmtPieceGroups + me_ / kLogfmtGroupLanes);
      const float weight = __shfl_sync(kWarp, weight_, static_cast<int>(i)),
                  log_min = __shfl_sync(kWarp, levels.log_min, of_group),
                  step = __shfl_sync(kWarp, levels.step, of_group);
      const bool is_cast = (cast >> i & 1) != 0;
      const std::uint32_t slot = kBulk ? i % kLogfmtBulkRows : 0;
      LogfmtBits bits;
      if constexpr (kBulk)
        bulk_->wait(i);
      else
        stage(ahead, is_cast);
      if (is_cast) {
#pragma unroll
        for (std::uint32_t k = 0; k < kCastWords; ++k)
          bits.words[k] = shared_.words[piece_][slot * kLogfmtRawWords + me_ * kCastWords + k];
      } else {
        add_raw(sum, slot, count, weight);
      }
      if constexpr (kBulk) {
        __syncwarp();  // the slot has been read
        copy_rows(i + kLogfmtBulkRows, 1, here, words, cast);
        if (clears_) clear(at(i), here, is_cast);
      } else if (i + 1 < count_) {
        fetch(ahead, at(i + 1), here, (cast >> (i + 1) & 1) != 0);
      }
      if (is_cast) {
        if ((normal >> (j * kLogfmtPieceGroups) & 0xfu) == 0xfu)
          add_unit<true>(sum, bits, count, weight, log_min, step);
        else
          add_unit<false>(sum, bits, count, weight, log_min, step);
      }
      if (by_rank_ && (ends_ >> i & 1) != 0) sum.end_level();
    }
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      float values[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) values[k] = by_rank_ ? sum.total[half][k] : sum.level[half][k];
      if (8 * half < count) out[first / 8 + half] = Bfloat16Vector::narrow(values);
    }
  }

  const LogfmtRow row_;
  const bool by_rank_, clears_;
  LogfmtDecoding<kBulk>& shared_;
  LogfmtBulkRows* const bulk_;  ///< with kBulk
  const std::uint32_t me_, piece_;
  std::uint32_t count_;  ///< rows
  std::uint32_t ends_;   ///< rows that are the last of their rank
  // Lane i:
  float weight_;
  std::uint32_t* at_;  ///< row i
};

}  // namespace shoal::ep::cuda
