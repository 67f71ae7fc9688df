// SPDX-License-Identifier: Apache-2.0
// device_layout.hpp: where every byte of a group in GPU memory lies in its block of the symmetric
// heap, as a pure function of its options; the same on every rank.
//
// Normal mode has the same receive area as on the host (Arena). A region of it holds x, then a side
// record for each row: the fields that travel with a row are contiguous, so that they are one small
// write. With one live result, combines stage expert output in the receive area as well.
//
// Low-latency mode has fixed slots by (source, token), and combine rows by (token, top-k slot or
// rank). A masked rank may write its combine rows late, when the half has been granted again; with
// mask_failed every rank therefore has places of its own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ep/plan/notices.hpp"
#include "ep/plan/shape.hpp"
#include "shoal/config.hpp"

namespace shoal::ep::detail {

/// Ranks of a group in GPU memory, at most: one NVLink domain.
inline constexpr std::int32_t kMaxDeviceRanks = 128;

/// Low latency: bytes and top-k slots of a packet of a slot's header.
inline constexpr std::size_t kPacketBytes = 16, kTopkSlotsPerPacket = 2;

/// Fields that travel with a row: scales, int64 experts and float32 weights at the receiving rank
/// (`top_k` of each; one in an expert-major layout), int32 source token. A multiple of 16 bytes.
struct SideRecord {
  std::uint32_t topk_idx, weights, source_token, bytes;

  SHOAL_HOST_DEVICE constexpr SideRecord(std::uint32_t scale_bytes, std::uint32_t top_k)
      : topk_idx(static_cast<std::uint32_t>(align_up(scale_bytes, 16))),
        weights(topk_idx + static_cast<std::uint32_t>(align_up(top_k, 2)) * 8),
        source_token(weights + static_cast<std::uint32_t>(align_up(top_k, 4)) * 4),
        bytes(source_token + 16) {}
};

/// A region with room for `rows` rows: x at offset 0, side records after it.
struct RegionLayout {
  std::uint64_t records, total;

  SHOAL_HOST_DEVICE constexpr RegionLayout(std::uint64_t rows, std::uint64_t row_bytes,
                                           std::uint64_t record_bytes)
      : records(align_up(rows * row_bytes, 128)),
        total(align_up(records + rows * record_bytes, kPageBytes)) {}
};

/// Notice of a rank to every other at the start of a normal operation. In a dispatch it is followed
/// by int32 rows for each rank [ranks], and int32 tokens for each expert of the receiving rank
/// [local_experts], expert-major for all experts [experts].
struct DeviceNotice {
  /// Offset in the block. Dispatch: the granted region, or kNoRoom; combine: y.
  std::uint64_t region;
  std::uint64_t weights;       ///< combine: offset of the weights; kNoRoom: none
  std::uint64_t handle_epoch;  ///< epoch of the dispatch that made the layout; 0: this one
  std::int64_t rows;           ///< dispatch: room of the region; combine: rows of the result
  std::uint32_t operation;     ///< Operation
  std::uint32_t dtype;
  std::uint32_t row_bytes;
  std::uint32_t scale_bytes;
  std::uint32_t has_weights;
  std::uint32_t weight_stride;     ///< combine: bytes between the weights of two rows
  std::uint32_t blocks;            ///< of the launch: each of them counts in `finished`
  std::uint32_t expert_alignment;  ///< of an expert-major dispatch; 0: rank-major
  std::uint32_t quantize;          ///< dispatch: Quantize
  std::uint32_t global_scale;      ///< the bits of the float32, of nvfp4
  /// combine: the rank's number of the shared range that holds y, whose start `region` then counts
  /// from; 0: none.
  std::uint64_t share;
  /// combine: where rows or weights are staged while others fetch, 1 + PieceSize::shift
  /// (cuda/normal/device/staged_pieces.cuh); else 0.
  std::uint64_t staged;
  /// Between nodes: epochs of the last low-latency operations that the rank had sent before.
  std::uint64_t dispatches_sent, combines_sent;
};

/// Rows of a piece of staged expert output, at most. A piece has one flag.
inline constexpr std::int32_t kStagedRows = 16;
/// Pieces of fewer rows, at most: about as many as a GPU has SMs.
inline constexpr std::int64_t kSmallPieces = 128;

/// Offsets in the group's block of the heap. The layout of an entry is in brackets; [2] is the
/// parity of the epoch.
struct DeviceLayout {
  // Control part, which is zeroed when the group starts. Signals have a line for each rank
  // (cuda/device/signals.cuh).

  /// Normal mode. `finished` counts the blocks of a rank that have written or fetched their rows,
  /// over all operations.
  std::size_t entered, finished;
  /// Low latency: grants of halves. The second word of a line holds the epoch of the last send that
  /// has begun; between nodes, the third one of combine_read that of the last weights sent.
  std::size_t dispatch_read, combine_read;
  /// failed_word (ep/plan/notices.hpp) when that rank has given the group up; else 0. Low latency,
  /// mask_failed: the second word of a line changes while that rank waits for a third one.
  std::size_t failed;
  std::size_t notices, notice_bytes;  ///< [2][ranks] DeviceNotice records
  /// [2][ranks] lines of two words: DispatchNoticeWord, CombineNoticeWord
  /// (cuda/low_latency/device/kernels.cuh).
  std::size_t low_latency_notices;
  std::size_t slot_headers, packets;  ///< [2][ranks][tokens][packets] SlotPacket
  /// [2][ranks][local_experts] words: epoch (low 32 bits), rows of a source for an expert.
  std::size_t slot_counts;
  /// [2][ranks][tokens] words: epoch of the row, for rows with flags.
  std::size_t slot_ready;
  /// Places of combine rows: [2][tokens][token_combine_rows] that ranks share, one for each top-k
  /// slot. Then, from place `own_combine_rows` on, [2][ranks][rank_combine_rows][tokens] for the
  /// first rows that a rank sends for a token. Ranks have own places between nodes, and where they
  /// may be masked; then they share none.
  std::size_t token_combine_rows, rank_combine_rows, own_combine_rows, combine_places;
  /// [combine_places] CombineNoticeWord, for rows with flags.
  std::size_t combine_flags;
  /// [ranks][staged_pieces] words: epoch of the combine for which that rank has staged the piece.
  std::size_t staged_flags, staged_pieces;
  /// [ranks][staged_pieces] uint32: rows of a piece for that rank, or parts of them, that this rank
  /// has staged; 0 between combines.
  std::size_t staged_counts;
  std::size_t control_end;

  // Normal mode.

  std::size_t arena, arena_bytes;
  /// Bytes that a result can always have while fewer than live_results are held.
  std::size_t largest_result;
  /// Staged expert output: rows, then weights. Where stages_in_arena is set, these have no bytes
  /// here, and each combine takes what it needs of the arena.
  std::size_t staging, staging_weights;
  std::size_t staging_bytes, staging_weight_bytes;  ///< of a combine, at most
  bool stages_in_arena;
  std::size_t normal_end;

  // Low-latency mode, which is filled with sentinels when the group starts.

  std::size_t slot_weights;       ///< [2][ranks][tokens][top_k] float32
  std::size_t slots, slot_bytes;  ///< [2][ranks][tokens] rows as they travel
  /// [2][ranks][tokens][top_k] words: epoch (low 32 bits), float32 weight.
  std::size_t combine_weights;
  std::size_t combine_rows, combine_row_bytes;  ///< [combine_places] rows
  std::size_t total;

  DeviceLayout() = default;
  explicit DeviceLayout(const Shape& shape);

 private:
  void place_combine_rows(const Shape& shape);
};

}  // namespace shoal::ep::detail
