// SPDX-License-Identifier: Apache-2.0
// encoded_rows.cuh: a warp adds up a piece of the encoded combine rows of a token, or decodes that
// of each.
//
// It takes the groups of eight rows at once, one a lane, and computes the levels of LogFMT-10
// there; it sums in registers. Words of the next rows are in flight while those of one are added.
#pragma once

#include "ep/cuda/device/vectors.cuh"
#include "ep/cuda/low_latency/device/self_signalling.cuh"
#include "ep/cuda/low_latency/device/token_rows.cuh"
#include "ep/cuda/low_latency/formats/float8.cuh"
#include "ep/cuda/low_latency/formats/logfmt.cuh"

namespace shoal::ep::cuda {

/// Sixteen channels of a sum. With levels, rows are grouped by rank and each group is rounded to
/// bfloat16 before it is added to the total.
struct UnitSum {
  float level[2][8] = {}, total[2][8] = {};

  __device__ void add(std::uint32_t i, float weight, float value) {
    level[i / 8][i % 8] = numeric::accumulate(level[i / 8][i % 8], weight, value);
  }
  /// Begins the sum of one row, which starts at -0 to keep the sign of zeros.
  __device__ void begin_row() {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (float& value : level[half]) value = -0.0F;
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

/// Decoder of the codes of a group: any of the functions that are right for it.
enum class LogfmtCodes : std::uint8_t {
  any,
  normal,   ///< logfmt_magnitude_normal, or zero
  nonzero,  ///< likewise, and no code is zero
};

template <LogfmtCodes kCodes>
__device__ void add_unit(UnitSum& sum, const LogfmtBits& bits, float weight, float log_min,
                         float step) {
#pragma unroll
  for (std::uint32_t i = 0; i < kRowUnit; ++i) {
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

/// The rows of a token, for the warps that add them up: sums of ranks, or expert outputs. kByRank:
/// in the order of ranks, with levels.
template <CombineEncoding kEncoding, bool kWhole, bool kByRank, int kPerLane>
class EncodedRows {
 public:
  /// `rows`: the first combine row. `unsummed`: each of the token's rows is decoded for itself.
  __device__ EncodedRows(const DeviceGroup& group, std::uint64_t epoch,
                         const TokenRows<kPerLane>& token_rows, uint4* rows, std::int32_t channels,
                         bool unsummed)
      : group_(group),
        epoch_(epoch),
        rows_(rows),
        row_(channels),
        me_(lane_id()),
        unsummed_(!kByRank && unsummed),
        slots_(token_rows.arrived) {
    count_ = token_rows.arrived.count();
    std::uint32_t order[kPerLane];
    order_rows(token_rows, kByRank, order);
    bool ends[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const std::uint32_t slot = order[i] % kRows;
      ends[i] = (order[i] & kEndsRank) != 0;
      weight_[i] = value_of(token_rows.weight, slot);
      rank_[i] = value_of(token_rows.slot.rank, slot);
      at_[i] = value_of(token_rows.row, slot);
    }
    ends_ = NumberSet<kPerLane>::vote(ends);
  }

  __device__ std::uint32_t pieces() const { return row_.pieces; }

  /// A warp adds up a piece. `out`: the first row of the token.
  __device__ void add_piece(std::uint32_t piece, uint4* out) const {
    const std::uint32_t unit = piece * 32 + me_, count = row_.channels_of(unit);
    const Place base{row_.base(piece), row_.units_of(piece), count != 0};
    std::uint32_t ahead[kAhead][kBase];
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i) load(ahead[i], i, base);
    UnitSum sum;
    if (unsummed_) sum.begin_row();
    NumberSet<kPerLane> slots = slots_;
    Groups groups{};
    bool came = true;
#pragma unroll 1
    for (std::uint32_t i = 0; i < count_; ++i) {
      const std::uint32_t j = i % kRowsAtOnce;
      if (j == 0) came = look_at_groups(piece, i, groups) && came;
      Words words;
#pragma unroll
      for (std::uint32_t k = 0; k < kBase; ++k) words.words[k] = ahead[0][k];
#pragma unroll
      for (std::uint32_t a = 0; a + 1 < kAhead; ++a)
#pragma unroll
        for (std::uint32_t k = 0; k < kBase; ++k) ahead[a][k] = ahead[a + 1][k];
      load(ahead[kAhead - 1], i + kAhead, base);
      came = complete(words.words, i, base) && came;
      const std::uint32_t first = j * kPieceGroups, all = (1u << kPieceGroups) - 1;
      const auto of_group = static_cast<int>(first + me_ / kGroupLanes);
      const float weight = value_of(weight_, i);
      if constexpr (kEncoding != CombineEncoding::log_fmt) {
        const float scale = float8_scale_in<kEncoding>(__shfl_sync(kWarp, groups.word, of_group));
#pragma unroll
        for (std::uint32_t k = 0; k < kBase; ++k)
          decode_e4m3(words.words[k], scale,
                      [&](std::uint32_t c, float value) { sum.add(4 * k + c, weight, value); });
      } else {
        const float log_min = __shfl_sync(kWarp, groups.levels.log_min, of_group),
                    step = __shfl_sync(kWarp, groups.levels.step, of_group);
        if ((groups.cast >> first & 1) == 0)
          came = add_raw(sum, words, i, {row_.extension(piece), base.stride, base.used}, weight) &&
                 came;
        else if ((groups.nonzero >> first & all) == all)
          add_unit<LogfmtCodes::nonzero>(sum, words, weight, log_min, step);
        else if ((groups.normal >> first & all) == all)
          add_unit<LogfmtCodes::normal>(sum, words, weight, log_min, step);
        else
          add_unit<LogfmtCodes::any>(sum, words, weight, log_min, step);
      }
      if (kByRank && ends_.has(i)) sum.end_level();
      if (!unsummed_) continue;
      if (came) store(sum, unit, count, row_of_slot(out, slots));
      slots = slots.without_first();
      sum.begin_row();
    }
    if (unsummed_)
      store_zeros(unit, count, out);
    else if (came)
      store(sum, unit, count, out);
  }

 private:
  /// Rows of a token, at most.
  static constexpr std::uint32_t kRows = 32 * kPerLane;
  /// Rows whose words are in flight while one is added.
  static constexpr std::uint32_t kAhead = 2;
  /// Rows whose levels are computed at once.
  static constexpr std::uint32_t kRowsAtOnce = 32 / kPieceGroups;
  static_assert(kRowsAtOnce * kPieceGroups == 32);

  static constexpr std::uint32_t kBase = kBaseWords<kEncoding>;
  /// The words of a lane follow each other, and one instruction moves them.
  static constexpr bool kVectors = kEncoding != CombineEncoding::log_fmt;

  /// Groups of a piece of kRowsAtOnce rows: lane 4 j + g has group g of row j.
  struct LogfmtGroups {
    numeric::LogfmtLevels levels;
    std::uint32_t cast, normal, nonzero;  ///< a bit for each lane
  };
  struct Float8Groups {
    std::uint32_t word;  ///< its scales
  };
  using Groups = std::conditional_t<kVectors, Float8Groups, LogfmtGroups>;
  struct Float8Codes {
    std::uint32_t words[kBase];
  };
  using Words = std::conditional_t<kVectors, Float8Codes, LogfmtBits>;
  /// Words of a lane in each row, `stride` apart from `first` on; the codes of e4m3 one by one.
  struct Place {
    std::uint32_t first, stride;
    bool used;  ///< false: the lane has none
  };

  __device__ std::uint32_t* at(std::uint32_t i, std::uint32_t word) const {
    return reinterpret_cast<std::uint32_t*>(rows_ + value_of(at_, i % kRows)) + word;
  }

  /// Starts to load words of row `i`. Those that do not exist are 0.
  template <std::uint32_t words>
  __device__ void load(std::uint32_t (&data)[words], std::uint32_t i, const Place& place) const {
    std::uint32_t* const from = at(i, place.first);
    if constexpr (kVectors && words == kBase) {
      const uint4 vector = place.used && i < count_
                               ? ptx::ld_relaxed_sys_global(reinterpret_cast<uint4*>(from))
                               : uint4{};
      set(data, vector);
    } else {
#pragma unroll
      for (std::uint32_t k = 0; k < words; ++k)
        data[k] =
            place.used && i < count_ ? ptx::ld_relaxed_sys_global(from + k * place.stride) : 0;
    }
  }
  __device__ static void set(std::uint32_t (&data)[4], const uint4& vector) {
    data[0] = vector.x;
    data[1] = vector.y;
    data[2] = vector.z;
    data[3] = vector.w;
  }

  /// Polls until loaded words have arrived, and replaces them by the sentinel. All lanes get
  /// whether they have.
  template <std::uint32_t words>
  __device__ bool complete(std::uint32_t (&data)[words], std::uint32_t i,
                           const Place& place) const {
    if (!self_signalling(group_)) return true;
    std::uint32_t* const from = at(i, place.first);
    const std::int32_t rank = value_of(rank_, i % kRows);
    std::uint64_t deadline = 0;
    bool came = true;
#pragma unroll 1
    for (std::uint32_t polls = 0; __any_sync(kWarp, came && !are_written(data)) != 0; ++polls) {
      if (polls == 0) deadline = ptx::globaltimer() + group_.timeout_ns;
      __nanosleep(kPollNs);
      if (!are_written(data)) {
        if constexpr (kVectors && words == kBase) {
          set(data, ptx::ld_relaxed_sys_global(reinterpret_cast<uint4*>(from)));
        } else {
#pragma unroll
          for (std::uint32_t k = 0; k < words; ++k)
            data[k] = ptx::ld_relaxed_sys_global(from + k * place.stride);
        }
      }
      if (polls % 64 == 63 && !are_written(data))
        deadline = check_sum_wait(group_, epoch_, rank, deadline);
      came = __all_sync(kWarp, deadline != kWaitFailed) != 0;
    }
    if (place.used) {
      if constexpr (kVectors && words == kBase) {
        *reinterpret_cast<uint4*>(from) = sentinels();
      } else {
#pragma unroll
        for (std::uint32_t k = 0; k < words; ++k) from[k * place.stride] = kSentinel;
      }
    }
    return came;
  }
  __device__ __noinline__ static std::uint64_t check_sum_wait(const DeviceGroup& group,
                                                              std::uint64_t epoch,
                                                              std::int32_t rank,
                                                              std::uint64_t deadline) {
    return check_wait(group, combine_row_wait(group, Phase::low_latency_combine_receive, epoch),
                      rank, deadline);
  }

  /// Takes the groups of rows from `first` on.
  __device__ bool look_at_groups(std::uint32_t piece, std::uint32_t first, Groups& groups) const {
    const std::uint32_t i = first + me_ / kPieceGroups,
                        group = piece * kPieceGroups + me_ % kPieceGroups;
    const bool exists = i < count_ && (kWhole || group < row_.groups);
    std::uint32_t word[1];
    load(word, i, {row_.group(group), 0, exists});
    const bool came = complete(word, i, {row_.group(group), 0, exists});
    if constexpr (kEncoding != CombineEncoding::log_fmt) {
      groups.word = word[0];
    } else {
      const numeric::LogfmtGroup mine = logfmt_group(word[0]);
      groups.levels = numeric::logfmt_levels(mine);
      groups.cast = __ballot_sync(kWarp, (word[0] & kLogfmtCast) != 0);
      const bool normal = !exists || groups.levels.log_min >= numeric::kLogfmtNormal;
      groups.normal = __ballot_sync(kWarp, normal);
      groups.nonzero = __ballot_sync(kWarp, !exists || (normal && groups.levels.nonzero));
    }
    return came;
  }

  /// Adds a unit that is not cast, of which `bits` has the base.
  __device__ bool add_raw(UnitSum& sum, const LogfmtBits& bits, std::uint32_t i, const Place& place,
                          float weight) const {
    std::uint32_t extension[kLogfmtExtension];
    load(extension, i, place);
    const bool came = complete(extension, i, place);
#pragma unroll
    for (std::uint32_t k = 0; k < kRowUnit / 2; ++k) {
      const std::uint32_t pair = k < kLogfmtBase ? bits.words[k] : extension[k - kLogfmtBase];
      sum.add(2 * k, weight, __uint_as_float(pair << 16));
      sum.add(2 * k + 1, weight, __uint_as_float(pair & 0xffff'0000u));
    }
    return came;
  }

  __device__ void store(const UnitSum& sum, std::uint32_t unit, std::uint32_t count,
                        uint4* out) const {
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      float values[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) values[k] = kByRank ? sum.total[half][k] : sum.level[half][k];
      if (8 * half < count) out[2 * unit + half] = Bfloat16Vector::narrow(values);
    }
  }

  /// The row of the first of `slots`.
  __device__ uint4* row_of_slot(uint4* out, const NumberSet<kPerLane>& slots) const {
    return out + static_cast<std::size_t>(slots.first()) * (row_.hidden / 8);
  }
  /// Clears the unit in the top-k slots that have no row.
  __device__ void store_zeros(std::uint32_t unit, std::uint32_t count, uint4* out) const {
    using Set = NumberSet<kPerLane>;
    Set empty = Set::below(static_cast<std::uint32_t>(group_.top_k)) & ~slots_;
    for (; empty.any(); empty = empty.without_first())
      for (std::uint32_t half = 0; 8 * half < count; ++half)
        row_of_slot(out, empty)[2 * unit + half] = {};
  }

  const DeviceGroup& group_;
  const std::uint64_t epoch_;
  uint4* const rows_;
  const CombineRow<kEncoding, kWhole> row_;
  const std::uint32_t me_;
  const bool unsummed_;
  const NumberSet<kPerLane> slots_;  ///< top-k slots that have a row
  std::uint32_t count_;              ///< rows
  NumberSet<kPerLane> ends_;         ///< rows that are the last of their rank
  // By the number of the row.
  float weight_[kPerLane];
  std::int32_t rank_[kPerLane];
  std::uint32_t at_[kPerLane];  ///< in chunks of 16 bytes from rows_ on
};

}  // namespace shoal::ep::cuda
