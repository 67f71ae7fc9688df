// SPDX-License-Identifier: Apache-2.0
// logfmt_decode.cuh: a warp adds up a piece of the LogFMT-10 rows of a token.
//
// It computes the levels of eight rows at once, one group a lane, and sums in registers. Words of
// the next rows are in flight while those of one are added.
#pragma once

#include "ep/cuda/device/vectors.cuh"
#include "ep/cuda/low_latency/logfmt.cuh"
#include "ep/cuda/low_latency/self_signalling.cuh"
#include "ep/cuda/low_latency/token_rows.cuh"

namespace shoal::ep::cuda {

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

/// How the codes of a group are decoded: by any of the functions that are right for it.
enum class LogfmtCodes : std::uint8_t {
  any,
  normal,   ///< logfmt_magnitude_normal, or zero
  nonzero,  ///< likewise, and no code is zero
};

template <LogfmtCodes kCodes>
__device__ void add_unit(LogfmtUnitSum& sum, const LogfmtBits& bits, float weight, float log_min,
                         float step) {
#pragma unroll
  for (std::uint32_t i = 0; i < kLogfmtUnit; ++i) {
    const std::uint32_t sign = bits.sign(i) & numeric::kSignBit, code = bits.code(i);
    float value;
    if constexpr (kCodes == LogfmtCodes::any) {
      value = numeric::decode_logfmt(code & 0x1ffu, sign != 0, log_min, step);
    } else {
      std::uint32_t magnitude =
          __float_as_uint(numeric::logfmt_magnitude_normal(code & 0x1ffu, log_min, step));
      if constexpr (kCodes == LogfmtCodes::normal) {
        // Kept, or the compiler branches around the computation for code 0.
        magnitude = ptx::keep_in_register(magnitude);
        if ((code & 0x1ffu) == 0) magnitude = 0;
      }
      value = __uint_as_float(magnitude | sign);
    }
    sum.add(i, weight, value);
  }
}

/// The rows of a token, for the warps that add them up.
class LogfmtRows {
 public:
  __device__ LogfmtRows(const DeviceGroup& group, const RowWait& wait, const TokenRows& token_rows,
                        std::byte* rows, std::uint32_t channels, bool by_rank)
      : group_(group), wait_(wait), row_(channels), by_rank_(by_rank), me_(lane_id()) {
    count_ = static_cast<std::uint32_t>(__popc(token_rows.arrived));
    const std::uint32_t order = order_rows(token_rows, by_rank);
    const auto slot = static_cast<int>(order & 31u);
    ends_ = __ballot_sync(kWarp, (order & kEndsRank) != 0);
    weight_ = __shfl_sync(kWarp, token_rows.weight, slot);
    rank_ = __shfl_sync(kWarp, token_rows.slot.rank, slot);
    at_ = reinterpret_cast<std::uint32_t*>(
        rows + std::size_t{__shfl_sync(kWarp, token_rows.row, slot)} * sizeof(uint4));
  }

  __device__ std::uint32_t pieces() const { return row_.pieces; }

  /// A warp adds up a piece.
  __device__ void add_piece(std::uint32_t piece, uint4* out) const {
    const std::uint32_t unit = piece * 32 + me_, count = row_.channels_of(unit);
    const std::uint32_t wanted = count != 0 ? (1u << kLogfmtBase) - 1 : 0;
    std::uint32_t ahead[kAhead][kLogfmtBase];
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i) load_base(ahead[i], piece, i, wanted);
    LogfmtUnitSum sum;
    Groups groups{};
    bool came = true;
#pragma unroll 1
    for (std::uint32_t i = 0; i < count_; ++i) {
      const std::uint32_t j = i % kRowsAtOnce;
      if (j == 0) came = look_at_groups(piece, i, groups) && came;
      std::uint32_t* const row = row_at(i);
      const std::int32_t rank = __shfl_sync(kWarp, rank_, static_cast<int>(i));
      LogfmtBits bits;
#pragma unroll
      for (std::uint32_t k = 0; k < kLogfmtBase; ++k) bits.words[k] = ahead[0][k];
#pragma unroll
      for (std::uint32_t a = 0; a + 1 < kAhead; ++a)
#pragma unroll
        for (std::uint32_t k = 0; k < kLogfmtBase; ++k) ahead[a][k] = ahead[a + 1][k];
      load_base(ahead[kAhead - 1], piece, i + kAhead, wanted);
      came = await(
                 group_, wait_, wanted, bits.words,
                 [&](int k) { return row + row_.word(piece, static_cast<std::uint32_t>(k)); },
                 [&](int) { return rank; }) &&
             came;
      __syncwarp();
      add_row(sum, bits, groups, j, piece, row, rank, wanted,
              __shfl_sync(kWarp, weight_, static_cast<int>(i)), came);
      if (by_rank_ && (ends_ >> i & 1) != 0) sum.end_level();
    }
    if (came) store(sum, unit, count, out);
  }

 private:
  /// Rows whose words are in flight while one is added.
  static constexpr std::uint32_t kAhead = 2;
  /// Rows whose levels are computed at once.
  static constexpr std::uint32_t kRowsAtOnce = 32 / kLogfmtPieceGroups;
  static_assert(kRowsAtOnce * kLogfmtPieceGroups == 32);

  /// Groups of a piece of kRowsAtOnce rows: lane 4 j + g has group g of row j.
  struct Groups {
    numeric::LogfmtLevels levels;
    std::uint32_t cast, normal, nonzero;  ///< a bit for each lane
  };

  __device__ std::uint32_t* row_at(std::uint32_t i) const {
    return reinterpret_cast<std::uint32_t*>(
        __shfl_sync(kWarp, reinterpret_cast<unsigned long long>(at_), static_cast<int>(i % 32)));
  }

  __device__ void load_base(std::uint32_t (&words)[kLogfmtBase], std::uint32_t piece,
                            std::uint32_t i, std::uint32_t wanted) const {
    const std::uint32_t* const row = row_at(i);
#pragma unroll
    for (std::uint32_t k = 0; k < kLogfmtBase; ++k)
      if (wanted != 0 && i < count_)
        words[k] = ptx::ld_relaxed_sys_global(row + row_.word(piece, k));
  }

  /// Takes the groups of rows from `first` on.
  __device__ bool look_at_groups(std::uint32_t piece, std::uint32_t first, Groups& groups) const {
    const std::uint32_t i = first + me_ / kLogfmtPieceGroups,
                        group = piece * kLogfmtPieceGroups + me_ % kLogfmtPieceGroups;
    std::uint32_t* const row = row_at(i);
    const std::int32_t rank = __shfl_sync(kWarp, rank_, static_cast<int>(i % 32));
    const bool exists = i < count_ && group < row_.groups;
    std::uint32_t word[1] = {kLogfmtCast};
    const bool came = take(
        group_, wait_, exists ? 1u : 0u, word,
        [&](int) { return row + row_.group_word() + group; }, [&](int) { return rank; });
    __syncwarp();
    const numeric::LogfmtGroup mine = logfmt_group(word[0]);
    groups.levels = numeric::logfmt_levels(mine);
    groups.cast = __ballot_sync(kWarp, (word[0] & kLogfmtCast) != 0);
    const bool normal = !exists || groups.levels.log_min >= numeric::kLogfmtNormal;
    groups.normal = __ballot_sync(kWarp, normal);
    groups.nonzero = __ballot_sync(kWarp, !exists || (normal && groups.levels.nonzero));
    return __all_sync(kWarp, came) != 0;
  }

  /// Adds the lane's words of row `j` of `groups`.
  __device__ void add_row(LogfmtUnitSum& sum, const LogfmtBits& bits, const Groups& groups,
                          std::uint32_t j, std::uint32_t piece, std::uint32_t* row,
                          std::int32_t rank, std::uint32_t wanted, float weight,
                          bool& came) const {
    const std::uint32_t first = j * kLogfmtPieceGroups, all = (1u << kLogfmtPieceGroups) - 1;
    const auto of_group = static_cast<int>(first + me_ / kLogfmtGroupLanes);
    const float log_min = __shfl_sync(kWarp, groups.levels.log_min, of_group),
                step = __shfl_sync(kWarp, groups.levels.step, of_group);
    if ((groups.cast >> first & 1) == 0)
      came = add_raw(sum, bits, piece, row, rank, wanted, weight) && came;
    else if ((groups.nonzero >> first & all) == all)
      add_unit<LogfmtCodes::nonzero>(sum, bits, weight, log_min, step);
    else if ((groups.normal >> first & all) == all)
      add_unit<LogfmtCodes::normal>(sum, bits, weight, log_min, step);
    else
      add_unit<LogfmtCodes::any>(sum, bits, weight, log_min, step);
  }

  /// Adds a unit that is not cast, of which `bits` has the base.
  __device__ bool add_raw(LogfmtUnitSum& sum, const LogfmtBits& bits, std::uint32_t piece,
                          std::uint32_t* row, std::int32_t rank, std::uint32_t wanted,
                          float weight) const {
    std::uint32_t extension[kLogfmtExtension] = {};
    const bool came = take(
        group_, wait_, wanted & ((1u << kLogfmtExtension) - 1), extension,
        [&](int k) {
          return row + row_.word(piece, kLogfmtBase + static_cast<std::uint32_t>(k));
        },
        [&](int) { return rank; });
    __syncwarp();
#pragma unroll
    for (std::uint32_t k = 0; k < kLogfmtUnit / 2; ++k) {
      const std::uint32_t pair = k < kLogfmtBase ? bits.words[k] : extension[k - kLogfmtBase];
      sum.add(2 * k, weight, __uint_as_float(pair << 16));
      sum.add(2 * k + 1, weight, __uint_as_float(pair & 0xffff'0000u));
    }
    return came;
  }

  __device__ void store(const LogfmtUnitSum& sum, std::uint32_t unit, std::uint32_t count,
                        uint4* out) const {
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      float values[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) values[k] = by_rank_ ? sum.total[half][k] : sum.level[half][k];
      if (8 * half < count) out[2 * unit + half] = Bfloat16Vector::narrow(values);
    }
  }

  const DeviceGroup& group_;
  const RowWait wait_;
  const LogfmtRow row_;
  const bool by_rank_;
  const std::uint32_t me_;
  std::uint32_t count_;  ///< rows
  std::uint32_t ends_;   ///< rows that are the last of their rank
  // Lane i: row i.
  float weight_;
  std::int32_t rank_;
  std::uint32_t* at_;
};

}  // namespace shoal::ep::cuda
