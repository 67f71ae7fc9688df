// SPDX-License-Identifier: Apache-2.0
// layout.hpp: where every byte of a group in GPU memory lies in the symmetric heap, as a pure
// function of its options; on every member alike.
//
// Normal mode has the same receive area as on the host (Arena); a region holds x, then a side
// record a row: what travels beside the row lies together, so that it is one small write.
// Low-latency mode has fixed slots by (source, token), and answers by (token, lane or member). A
// member that was masked may write its answers late, when the half has been granted again: with
// mask_failed it has places that are no other member's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ep/plan/notices.hpp"
#include "ep/plan/shape.hpp"
#include "shoal/config.hpp"

namespace shoal::ep::detail {

/// Members of a group in GPU memory at most: one NVLink domain (B3).
inline constexpr std::int32_t kMaxDeviceRanks = 128;

/// Low latency: what a packet of a slot's header holds.
inline constexpr std::size_t kPacketBytes = 16, kLanesPerPacket = 2;

/// What travels beside a row: scales, int64 experts and float32 weights of the receiving member
/// (`top_k` of them; one in the expert-major layout), int32 source token. A multiple of 16 bytes.
struct SideRecord {
  std::uint32_t topk_idx, weights, source_token, bytes;

  SHOAL_HOST_DEVICE constexpr SideRecord(std::uint32_t scale_bytes, std::uint32_t top_k)
      : topk_idx(static_cast<std::uint32_t>(align_up(scale_bytes, 16))),
        weights(topk_idx + static_cast<std::uint32_t>(align_up(top_k, 2)) * 8),
        source_token(weights + static_cast<std::uint32_t>(align_up(top_k, 4)) * 4),
        bytes(source_token + 16) {}
};

/// A region with room for `rows` rows: x at 0, side records behind it.
struct RegionLayout {
  std::uint64_t records, total;

  SHOAL_HOST_DEVICE constexpr RegionLayout(std::uint64_t rows, std::uint64_t row_bytes,
                                           std::uint64_t record_bytes)
      : records(align_up(rows * row_bytes, 128)),
        total(align_up(records + rows * record_bytes, kPageBytes)) {}
};

/// What members tell each other at the start of a normal operation; followed by int32 rows per
/// member [ranks] and int32 tokens per expert of the member that is told [local_experts];
/// expert-major: of all members [experts].
struct DeviceNotice {
  std::uint64_t region;   ///< dispatch: of the granted region; combine: of y; bytes from the start
                          ///< of the block
  std::uint64_t weights;  ///< combine: likewise, of the weights; kNoRoom: none
  std::uint64_t handle_epoch;  ///< of the dispatch that made the layout; 0: this one
  std::int64_t rows;           ///< dispatch: room of the region; combine: rows of the result
  std::uint32_t operation;     ///< Operation
  std::uint32_t dtype;
  std::uint32_t row_bytes;
  std::uint32_t scale_bytes;
  std::uint32_t has_weights;
  std::uint32_t weight_stride;     ///< combine: bytes between the weights of two rows
  std::uint32_t blocks;            ///< of the launch: each of them counts in `finished`
  std::uint32_t expert_alignment;  ///< of an expert-major dispatch; 0: flat
  /// combine: the member's number of the shared range that y lies in, whose start `region` then
  /// counts from; 0: none
  std::uint64_t share;
};

/// Offsets within the group's block of the heap.
struct DeviceLayout {
  // Signals: a line per member, holding the epoch of the last operation for which that member did
  // so. Only `finished` counts the blocks of that member that have written or fetched their rows,
  // over all operations.
  std::size_t entered, finished;  ///< normal mode
  /// Low latency: half granted again. A second word on the line holds the epoch of the last send
  /// that has begun.
  std::size_t slots_read, answers_read;
  /// Not 0 once the group of that member has failed. Low latency, mask_failed: a second word on the
  /// line changes while that member waits for another than this one.
  std::size_t failed;
  std::size_t notices, notice_bytes;  ///< [2][ranks] DeviceNotice records
  /// [2][ranks] lines: a word of the low-latency dispatch of that parity, a word of the combine;
  /// see cuda/low_latency/kernels.cuh.
  std::size_t slot_notices;
  /// [2][ranks][tokens][packets] of 16 bytes that are written and read whole: SlotPacket.
  std::size_t slot_headers, packets;
  std::size_t slot_counts;  ///< [2][ranks][local_experts] words: epoch (low 32 bits), rows of a
                            ///< source for an expert
  /// [2][ranks][tokens] words: epoch of the row, where the token has an expert here and its row
  /// does not tell of itself.
  std::size_t slot_ready;
  /// Answers of a token, and how many of them each member has to itself; 0: they are packed
  /// (mask_failed is false).
  std::size_t token_answers, member_answers;
  std::size_t answer_flags;  ///< [2][tokens][token_answers] words: AnswerNotice, where the answer
                             ///< does not tell of itself
  std::size_t control_end;
  // Normal mode.
  std::size_t arena, arena_bytes;
  std::size_t largest_result;  ///< bytes that a result can always have while fewer than
                               ///< live_results are held
  std::size_t staging, staging_weights;
  std::size_t normal_end;
  // Low-latency mode.
  std::size_t slot_weights;       ///< [2][ranks][tokens][top_k] float32
  std::size_t slots, slot_bytes;  ///< [2][ranks][tokens]: a row as it travels
  std::size_t slot_scales;        ///< offset of the float32 scales in a slot
  std::size_t
      combine_weights;  ///< [2][ranks][tokens][top_k] words: epoch (low 32 bits), float32 weight
  std::size_t answers, answer_bytes;  ///< [2][tokens][token_answers] rows
  std::size_t total;

  DeviceLayout() = default;
  explicit DeviceLayout(const Shape& shape);
};

}  // namespace shoal::ep::detail
