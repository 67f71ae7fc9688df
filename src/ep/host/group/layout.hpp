// SPDX-License-Identifier: Apache-2.0
// layout.hpp: the memory layout of a group on the host, as pure functions of its shape.
//
// All offsets are the same on every rank. The receive area of normal mode is an arena: each
// dispatch takes a region from it. The layout of a region (ReceiveLayout) follows from its number
// of rows alone, so that senders compute the address of every row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ep/plan/cursor.hpp"
#include "ep/plan/notices.hpp"
#include "ep/plan/row_format.hpp"
#include "ep/plan/shape.hpp"
#include "shoal/settings.hpp"

namespace shoal::ep::host {

using detail::CombineRowForm;
using detail::is_encoded;
using detail::is_sums;
using detail::kLine;
using detail::Shape;

/// The arrays of one dispatch's result, one after another.
struct ReceiveLayout {
  std::size_t x = 0, scales = 0, topk_idx = 0, weights = 0, source_token = 0, topk_rows = 0,
              total = 0;

  /// numbered: elements of topk_rows.
  ReceiveLayout(std::int64_t rows, std::size_t row_bytes, std::size_t scale_bytes,
                std::int32_t topk_slots, std::int64_t numbered = 0);
};

/// Notice that a rank publishes at the start of a normal operation; followed by int32 counts of
/// rows [ranks] and of tokens [experts].
struct NormalNotice {
  std::uint64_t operation;     ///< Operation
  std::uint64_t base;          ///< heap offset of the granted region (dispatch) or of y (combine)
  std::uint64_t weights;       ///< combine: heap offset of the weights, or kNoRoom
  std::uint64_t handle_epoch;  ///< epoch of the dispatch whose layout is reused; 0: a new layout
  std::int64_t rows;           ///< worst_case_rows (dispatch), received rows (combine)
  std::uint32_t dtype;
  std::uint32_t scales;  ///< scales per row
  std::uint32_t has_weights;
  std::uint32_t expert_alignment;  ///< of an expert-major dispatch; 0: rank-major
  std::uint32_t also_rank_major;   ///< of an expert-major dispatch
  std::uint32_t quantize;          ///< dispatch: Quantize
  float global_scale;              ///< of nvfp4: announced_scale_of
  std::uint32_t unsummed;          ///< of a combine between nodes: CombineOptions::unsummed
  /// Epochs of the last low-latency operations that the rank had sent before.
  std::uint64_t dispatches_sent, combines_sent;
};

/// Notice that a source publishes to a rank about one low-latency dispatch. If its epoch differs
/// from that of the signal, the source has masked the rank.
struct LowLatencyDispatchNotice {
  std::uint64_t epoch;
  std::uint32_t quantize;
  float global_scale;         ///< of nvfp4
  std::int32_t count;         ///< of slots
  std::uint32_t has_weights;  ///< 1: weights travel with the tokens to ranks of other nodes
};

/// Notice that a rank publishes to a source about its combine rows; followed by int32 first rows
/// [local_experts] of the source's tokens.
struct LowLatencyCombineNotice {
  std::uint64_t epoch;
  std::uint64_t dispatch_epoch;  ///< of the dispatch that is combined
  CombineRowForm agreed;         ///< agreed_form of the sender's options
  CombineRowForm sent;           ///< of the rows that it provides
};

/// A message slot: one token of a low-latency dispatch. Followed by int32 local experts [top_k]
/// (-1: none); from other nodes, if weights travel, by float32 weights [top_k].
struct SlotHeader {
  std::int32_t source_token;
};

/// Bytes of a row of the outbox: a token as it travels (detail::RowFormat).
constexpr std::size_t outbox_row_bytes(std::int64_t hidden, Quantize quantize) {
  return align_up(detail::RowFormat(quantize).wire_bytes(hidden), kLine);
}

/// Offsets in the group's block of memory, and sizes.
struct GroupLayout {
  // Signals: one cache line per rank, which holds the epoch of the last operation in which that
  // rank reached the step.
  std::size_t entered, finished;       ///< normal mode: notice published; rows written or fetched
  std::size_t slots_sent, slots_read;  ///< low-latency dispatch
  std::size_t combine_ready, combine_read;  ///< low-latency combine
  std::size_t failed;                       ///< failed_word once the rank has given up; else 0
  std::size_t chunks_sent, chunks_read;     ///< rails: a line per node, counting chunks
  // Values that signals publish: two of each, by parity of the epoch.
  std::size_t notices, notice_bytes;                  ///< [2][ranks] NormalNotice with its counts
  std::size_t dispatch_notices;                       ///< [2][ranks] LowLatencyDispatchNotice
  std::size_t combine_notices, combine_notice_bytes;  ///< [2][ranks] LowLatencyCombineNotice
  std::size_t control_end;
  // Payload.
  std::size_t arena, arena_bytes;        ///< receive regions
  std::size_t largest_result;            ///< bytes guaranteed to each of live_results results
  std::size_t staging, staging_weights;  ///< y and weights of combine from outside the block
  std::size_t chunk_bytes;               ///< of a chunk between nodes, header included
  std::uint64_t chunk_depth;             ///< chunks that may lie unread at a rail peer
  std::size_t chunks_out, chunks_in;     ///< [nodes][chunk_depth] chunks
  std::size_t normal_end;
  std::size_t slots, slot_bytes;     ///< [2][ranks][low_latency_max_tokens] slots sent to this rank
  std::size_t outbox, outbox_bytes;  ///< [2][low_latency_max_tokens] tokens of this rank
  std::size_t combine_rows;          ///< [2][local_experts][low_latency_rows]
  std::size_t combine_row_stride;    ///< bytes between combine rows
  // Ranks of other nodes cannot fetch, so rows are sent to them. A slot travels with its row.
  // Combine rows are ordered by expert, then token; sums by slot.
  std::size_t remote_out, remote_in, remote_slots_bytes;  ///< [2][remote_ranks] headers, then rows
  std::size_t remote_sums;          ///< [2][remote_ranks][low_latency_max_tokens] sums to send
  std::size_t remote_combine_rows;  ///< [2][remote_ranks][max_combine_rows]
  std::size_t total;

  /// `settings`: of the chunks between nodes. Throws Error{invalid_argument} when a size exceeds
  /// 64 bits.
  explicit GroupLayout(const Shape& shape, const Settings& settings = {});

  std::size_t notice(std::uint64_t epoch, std::int32_t rank, const Shape& shape) const {
    return notices + ((epoch & 1) * shape.ranks + rank) * notice_bytes;
  }
  std::size_t dispatch_notice(std::uint64_t epoch, std::int32_t rank, const Shape& shape) const {
    return dispatch_notices + ((epoch & 1) * shape.ranks + rank) * kLine;
  }
  std::size_t combine_notice(std::uint64_t epoch, std::int32_t rank, const Shape& shape) const {
    return combine_notices + ((epoch & 1) * shape.ranks + rank) * combine_notice_bytes;
  }
  std::size_t slot(std::uint64_t epoch, std::int32_t source, std::int64_t index,
                   const Shape& shape) const {
    return slots + (((epoch & 1) * shape.ranks + source) * shape.low_latency_max_tokens + index) *
                       slot_bytes;
  }
  std::size_t outbox_row(std::uint64_t epoch, std::int64_t token, const Shape& shape) const {
    return outbox + ((epoch & 1) * shape.low_latency_max_tokens + token) * outbox_bytes;
  }
  /// Chunk `number` of a ring (chunks_out or chunks_in) to or from a node.
  std::size_t chunk(std::size_t ring, std::int32_t node, std::uint64_t number) const {
    return ring + (node * chunk_depth + number % chunk_depth) * chunk_bytes;
  }
  /// Bytes of a slot on its way to another node.
  std::size_t remote_header_bytes(bool has_weights, const Shape& shape) const {
    return slot_bytes + (has_weights ? align_up(shape.top_k * sizeof(float), 8) : 0);
  }
  /// Slots to (remote_out) or from (remote_in) a rank of another node. `remote`: its remote index
  /// (Nodes::remote_index).
  std::size_t remote_slots(std::size_t area, std::uint64_t epoch, std::int32_t remote,
                           const Shape& shape) const {
    return area + ((epoch & 1) * shape.remote_ranks() + remote) * remote_slots_bytes;
  }
  std::size_t remote_sum(std::uint64_t epoch, std::int32_t remote, std::int64_t token,
                         const Shape& shape) const {
    return remote_sums +
           (((epoch & 1) * shape.remote_ranks() + remote) * shape.low_latency_max_tokens + token) *
               combine_row_stride;
  }
  std::size_t remote_combine_row(std::uint64_t epoch, std::int32_t remote, std::int64_t row,
                                 const Shape& shape) const {
    return remote_combine_rows +
           (((epoch & 1) * shape.remote_ranks() + remote) * shape.max_combine_rows() + row) *
               combine_row_stride;
  }
  std::size_t combine_row(std::uint64_t epoch, std::int32_t local_expert, std::int64_t row,
                          const Shape& shape) const {
    return combine_rows +
           (((epoch & 1) * shape.local_experts + local_expert) * shape.low_latency_rows() + row) *
               combine_row_stride;
  }

 private:
  void place_control(detail::Cursor& cursor, const Shape& shape);
  void place_normal(detail::Cursor& cursor, const Shape& shape, const Settings& settings);
  void place_low_latency(detail::Cursor& cursor, const Shape& shape);
};

}  // namespace shoal::ep::host
