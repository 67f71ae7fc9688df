// SPDX-License-Identifier: Apache-2.0
// combine_sums.cuh: expert output with a row for each top-k slot (CombineOptions::topk_rows),
// summed for the ranks that fetch it.
//
// Moves: reads the rows that topk_rows names for each received row of another rank, chunk by chunk
// through shared memory, and writes their sum to the staging area: float32, top-k slots ascending,
// rounded once. Rows that this rank received from itself are summed where they are added
// (combine.cuh).
//
// Publishes: as combine_staging.cuh.
#pragma once

#include "ep/cuda/device/slots.cuh"
#include "ep/cuda/normal/device/combine_staging.cuh"

namespace shoal::ep::cuda {
namespace {

/// The row of y that topk_rows names for a top-k slot of a received row; -1: none.
__device__ std::int32_t load_row_of_slot(const NormalCombine& params, std::int64_t row,
                                         std::uint32_t slot = lane_id()) {
  const auto top_k = static_cast<std::uint32_t>(params.group.top_k);
  return slot < top_k ? params.staging.topk_rows[row * top_k + slot] : -1;
}

__device__ __noinline__ void report_row_of_slot(const NormalCombine& params, std::uint64_t epoch,
                                                std::int64_t row, std::int32_t given,
                                                std::uint32_t slot) {
  report_fault(params.group, Fault::bad_row, Phase::combine_fetch,
               static_cast<std::uint32_t>(detail::Operation::combine), params.group.me, epoch, slot,
               row, given, params.staging.row_count - 1, false);
}

/// `given`, or -1 for a row that y does not have. With `reports`, reports the first such row. The
/// whole warp calls.
__device__ std::int32_t checked_row_of_slot(const NormalCombine& params, std::uint64_t epoch,
                                            std::int64_t row, std::int32_t given, bool reports,
                                            std::uint32_t slot = lane_id()) {
  const bool outside = given < -1 || given >= params.staging.row_count;
  const std::uint32_t bad = __ballot_sync(~0u, outside);
  if (bad == 0) return given;
  if (reports && static_cast<int>(lane_id()) == __ffs(static_cast<int>(bad)) - 1)
    report_row_of_slot(params, epoch, row, given, slot);
  __syncwarp();
  return outside ? -1 : given;
}

/// The rows of y that topk_rows names for a received row, those that y has. With `reports`, reports
/// others. The whole warp calls.
template <int kPerLane>
__device__ NumberedValues<kPerLane> checked_rows(const NormalCombine& params, std::uint64_t epoch,
                                                 std::int64_t row, bool reports) {
  return NumberedValues<kPerLane>([&](std::uint32_t slot) {
    return checked_row_of_slot(params, epoch, row, load_row_of_slot(params, row, slot), reports,
                               slot);
  });
}

#if __CUDA_ARCH__ >= 900
/// Bytes of a chunk where a stage holds chunks of so many rows: what a warp adds at a time, or a
/// multiple, where the stage has room. A stage has room for half of the rows at least.
__device__ std::uint32_t chunk_of_stage(std::uint32_t stage_bytes, std::uint32_t rows) {
  constexpr std::uint32_t kLargest = 8 << 10, kAlignment = 64;  // bytes
  const std::uint32_t bytes = min(kLargest, stage_bytes / max(1u, rows));
  return bytes >= kCombineStep ? bytes / kCombineStep * kCombineStep
                               : bytes / kAlignment * kAlignment;
}

/// The rows of one warp, in order; the next one is looked up while one is summed.
template <class Format>
class StagedSums {
 public:
  __device__ StagedSums(const NormalCombine& params, StagedPiece& piece, const PieceSize& size,
                        std::uint64_t epoch, std::byte* shared)
      : params_(params), epoch_(epoch), units_(params, piece, size, 1), stages_(params, shared) {}

  __device__ void run() {
    look_up();
    begin_row();
#pragma unroll 1
    for (std::uint32_t s = 0; s < stages_.ahead(); ++s) load();
#pragma unroll 1
    while (!stages_.all_added()) {
      load();
      add();
    }
    stages_.close();
  }

 private:
  __device__ void look_up() {
    next_ = units_.next();
    if (next_.exists()) next_of_slot_ = load_row_of_slot(params_, next_.first);
  }
  __device__ void begin_row() {
    unit_ = next_;
    if (!unit_.exists()) return;
    const std::int32_t row =
        checked_row_of_slot(params_, epoch_, unit_.first, next_of_slot_, unit_.begin == 0);
    const std::uint32_t votes = __ballot_sync(~0u, row >= 0);
    copies_ = __popc(votes);
    mine_ = row >= 0;
    place_ = __popc(votes & ((1u << lane_id()) - 1));
    from_ = params_.staging.rows + static_cast<std::int64_t>(row) * params_.row_bytes;
    chunk_ = chunk_of_stage(stages_.stage_bytes(), copies_);
    at_ = unit_.begin;
    if (at_ == 0) stage_weights(params_, unit_.first, unit_.end);
    look_up();
  }

  /// Fields in the last word of a note: bytes below kCopies, rows from there on, and a flag if the
  /// chunk ends the unit.
  static constexpr std::uint32_t kCopies = 16, kEndsUnit = 1u << 31;

  __device__ void load() {
    if (!unit_.exists()) return;
    const std::uint32_t bytes = min(chunk_, unit_.end_bytes - at_);
    const std::uint32_t ends = at_ + bytes == unit_.end_bytes ? kEndsUnit : 0;
    stages_.begin_load({static_cast<std::uint32_t>(unit_.first),
                        unit_.piece << 8 | static_cast<std::uint32_t>(unit_.rank), at_,
                        bytes | copies_ << kCopies | ends},
                       bytes * copies_);
    if (mine_) stages_.load(place_ * bytes, from_ + at_, bytes);
    stages_.end_load();
    at_ += bytes;
    if (ends != 0) begin_row();
  }

  __device__ void add() {
    const auto [row, unit, at, sizes] = stages_.note();
    const std::uint32_t bytes = sizes & 0xffffu, copies = sizes >> kCopies & 0xffu;
    std::byte* const to = staging_row(params_, row) + at;
    const SharedAddress from = stages_.await();
    for_parts(bytes, [&](auto parts, std::uint32_t v) {
      constexpr int kParts = decltype(parts)::value;
      float sums[kParts][Format::kCount] = {};
      add_chunks<Format, kParts>(sums, from + v, bytes, 0, copies);
#pragma unroll
      for (int i = 0; i < kParts; ++i)
        *reinterpret_cast<uint4*>(to + v + i * kCombineStep) = Format::narrow(sums[i]);
    });
    stages_.end_add();
    if ((sizes & kEndsUnit) != 0 && lane_id() == 0)
      units_.count(epoch_, static_cast<std::int32_t>(unit & 0xffu), unit >> 8, 1);
  }

  const NormalCombine& params_;
  const std::uint64_t epoch_;
  StagedUnits units_;
  ChunkStages stages_;
  StagedUnit unit_, next_;         ///< unit_ is being loaded, from at_ on
  std::int32_t next_of_slot_ = 0;  ///< load_row_of_slot of next_
  std::uint32_t copies_ = 0, chunk_ = 0, at_ = 0, place_ = 0;
  bool mine_ = false;
  const std::byte* from_ = nullptr;
};
#endif

/// Sums without bulk copies: kParts loads of 16 bytes a lane in flight.
template <class Format, int kPerLane>
class DirectStagedSums {
 public:
  __device__ DirectStagedSums(const NormalCombine& params, StagedPiece& piece,
                              const PieceSize& size, std::uint64_t epoch, std::byte*)
      : params_(params), epoch_(epoch), units_(params, piece, size, 1) {}

  __device__ void run() {
    for (StagedUnit unit = units_.next(); unit.exists(); unit = units_.next()) {
      const std::int32_t row = unit.first;
      const bool first = unit.begin == 0;
      sum(checked_rows<kPerLane>(params_, epoch_, row, first), staging_row(params_, row), unit);
      if (first) stage_weights(params_, unit.first, unit.end);
      __syncwarp();
      if (lane_id() == 0) units_.count(epoch_, unit);
    }
  }

 private:
  __device__ void sum(const NumberedValues<kPerLane>& rows, std::byte* to,
                      const StagedUnit& unit) const {
    constexpr int kParts = 4;
    const std::uint32_t vectors = unit.end_bytes / 16;
    for (std::uint32_t first = unit.begin / 16 + lane_id(); first < vectors + lane_id();
         first += 32 * kParts) {
      float sums[kParts][Format::kCount] = {};
      rows.each([&](std::int64_t row) {
        const auto* const from =
            reinterpret_cast<const uint4*>(params_.staging.rows + row * params_.row_bytes);
        uint4 parts[kParts];
#pragma unroll
        for (int i = 0; i < kParts; ++i)
          if (first + 32 * i < vectors) parts[i] = __ldcs(from + first + 32 * i);
#pragma unroll
        for (int i = 0; i < kParts; ++i)
          if (first + 32 * i < vectors) add_vector<Format>(sums[i], parts[i]);
      });
#pragma unroll
      for (int i = 0; i < kParts; ++i)
        if (first + 32 * i < vectors)
          *(reinterpret_cast<uint4*>(to) + first + 32 * i) = Format::narrow(sums[i]);
    }
  }

  const NormalCombine& params_;
  const std::uint64_t epoch_;
  StagedUnits units_;
};

template <class Format, int kPerLane>
struct SumsToStage {
  using Type = DirectStagedSums<Format, kPerLane>;
};
#if __CUDA_ARCH__ >= 900
template <class Format>
struct SumsToStage<Format, 1> {
  using Type = StagedSums<Format>;
};
#endif

/// Sums rows until none is left. The whole block calls. Out of line, as stage_copies.
template <class Format, int kPerLane>
__device__ __noinline__ void stage_sums(const NormalCombine& params, std::uint64_t epoch,
                                        std::byte* shared, bool only_one) {
  if (params.group.ranks == 1) return;
  const PieceSize size(params);
  StagedPiece& piece = begin_pieces(params.group, only_one, size.few);
  if (is_beyond(piece, size, params.group)) return;
  if (aborted(params.group) || *params.handle.epoch == kRefused) return;
  typename SumsToStage<Format, kPerLane>::Type(params, piece, size, epoch, shared).run();
}

}  // namespace
}  // namespace shoal::ep::cuda
