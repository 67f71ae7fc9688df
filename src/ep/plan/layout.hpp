// SPDX-License-Identifier: Apache-2.0
// layout.hpp: where every byte of a group lies in the symmetric heap, as pure functions of its
// options.
//
// All offsets are the same on every member. The receive area of normal mode is an arena: each
// dispatch takes a region from it, whose inner layout (ReceiveLayout) is a function of the number
// of rows alone, so that senders compute it too (DESIGN.md, idea 1).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/align.hpp"
#include "shoal/ep/group.hpp"
#include "shoal/settings.hpp"

namespace shoal::ep::detail {

constexpr std::size_t kLine = 64;  // one signal a cache line: neighbours do not fight over it

using shoal::align_up;

/// Channels that share one scale (FP8) or one range (LogFMT).
constexpr std::int64_t kChannelGroup = 128;
constexpr std::int64_t scale_groups(std::int64_t hidden) {
  return (hidden + kChannelGroup - 1) / kChannelGroup;
}

/// Group options with everything that follows from them.
struct Shape {
  std::int32_t ranks = 0, experts = 0, local_experts = 0, top_k = 0;
  std::int32_t nodes = 1;  ///< that the members lie on, equally many on each
  std::int64_t hidden = 0, max_tokens = 0, low_latency_max_tokens = 0, max_scales = 0;
  std::int32_t live_results = 0;
  bool combine_staging = true, mask_failed = false;
  std::size_t max_row_bytes = 0;     ///< of the widest dispatch row of normal mode
  std::size_t max_answer_bytes = 0;  ///< of the widest combine row of normal mode
  std::size_t chunk_bytes = 0;       ///< of what travels between nodes at a time, header included
  std::uint64_t chunk_depth = 0;     ///< chunks that may lie at a rail peer unread

  std::int32_t far() const noexcept { return ranks - ranks / nodes; }  ///< members on other nodes
  /// Answers of low-latency mode that one member can have for one source.
  std::int64_t max_answers() const noexcept {
    return low_latency_max_tokens * std::min(top_k, local_experts);
  }

  std::int64_t max_received() const noexcept { return ranks * max_tokens; }
  /// Rows of an expert-major result at most: one for each expert of a token here, each block of an
  /// expert aligned.
  std::int64_t max_expert_major_rows(std::int64_t alignment) const noexcept {
    return max_received() * std::min(top_k, local_experts) + local_experts * (alignment - 1);
  }
  std::int64_t low_latency_rows() const noexcept {
    return ranks * low_latency_max_tokens;
  }  ///< per local expert
};

/// Throws Error{invalid_argument} for options outside their limits. `settings`: of chunks, where
/// there are several nodes.
Shape make_shape(const GroupOptions& options, std::int32_t ranks, std::int32_t nodes = 1,
                 const Settings& settings = {});

/// The arrays of one dispatch's result, one after another.
struct ReceiveLayout {
  std::size_t x = 0, scales = 0, topk_idx = 0, weights = 0, source_token = 0, total = 0;

  ReceiveLayout(std::int64_t rows, std::size_t row_bytes, std::size_t scale_bytes,
                std::int32_t top_k);
};

/// The most rows, up to `most`, for which `bytes_of(rows)`, which grows with them, is at most
/// `bytes`.
template <typename BytesOf>
std::int64_t rows_that_fit(std::int64_t most, std::size_t bytes, BytesOf&& bytes_of) {
  std::int64_t low = 0,
               high = std::min<std::int64_t>(most, std::numeric_limits<std::int32_t>::max());
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (bytes_of(middle) <= bytes)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

/// What members tell each other at the start of a normal operation; followed by int32 counts of
/// rows [ranks] and of tokens [experts].
struct Notice {
  std::uint64_t operation;  ///< Operation, so that a dispatch never meets a combine
  std::uint64_t
      base;  ///< heap offset of the granted region (dispatch) or of y (combine); kNoRoom: none
  std::uint64_t weights;       ///< combine: heap offset of the weights, or kNoRoom
  std::uint64_t handle_epoch;  ///< epoch of the dispatch that made the layout; 0: this one
  std::int64_t rows;           ///< worst_case_rows (dispatch), received rows (combine)
  std::uint32_t dtype;
  std::uint32_t scales;  ///< scales per row
  std::uint32_t has_weights;
  std::uint32_t expert_alignment;  ///< of an expert-major dispatch; 0: flat
};
constexpr std::uint64_t kNoRoom = ~std::uint64_t{0};
enum class Operation : std::uint64_t { dispatch = 1, combine = 2 };

/// What a source tells a member about one low-latency dispatch. A notice of another epoch than its
/// signal's means that the source has masked this member.
struct SlotNotice {
  std::uint64_t epoch;
  std::uint32_t quantize;
  std::int32_t count;  ///< of slots
  std::uint32_t
      has_weights;  ///< whether the weights of the tokens travel along, to members of other nodes
};

/// How the answers of one member to low-latency combine come: a weighted sum over its experts per
/// token, in bfloat16; a row per expert in bfloat16; a row per expert in LogFMT-10.
enum class AnswerForm : std::uint32_t { sums, rows, log_fmt };

/// What an owner of answers tells a member; followed by int32 first rows [local_experts] of that
/// member's tokens.
struct AnswerNotice {
  std::uint64_t epoch;
  std::uint64_t dispatch_epoch;  ///< whose rows are answered
  AnswerForm form;
  std::uint32_t exact;  ///< whether sums are rounded once
};

/// What a source tells a member about one token in low-latency mode; followed by int32 local
/// experts [top_k] (-1: none); on other nodes, where weights travel, by float32 weights [top_k].
struct SlotHeader {
  std::int32_t source_token;
};

/// A row of the outbox: the token as it travels, at `scales` its float32 dequantisation scales.
struct OutboxLayout {
  std::size_t scales, total;
  OutboxLayout(std::int64_t hidden, bool quantized);
};

/// Offsets within the group's block of the heap.
struct GroupLayout {
  // Signals: a line per member, holding the epoch of the last operation for which that member did
  // so.
  std::size_t entered, finished;       ///< normal mode: entry with notice; rows written or fetched
  std::size_t slots_sent, slots_read;  ///< low-latency dispatch
  std::size_t answers_ready, answers_read;  ///< low-latency combine
  std::size_t failed;                       ///< 1 once the group of that member has failed
  std::size_t chunks_sent,
      chunks_read;  ///< of rails, a line per node: chunks so far; they only grow
  // Values that signals publish, two of each by parity of the epoch.
  std::size_t notices, notice_bytes;                ///< [2][ranks] records
  std::size_t slot_notices;                         ///< [2][ranks] SlotNotice, a line each
  std::size_t answer_notices, answer_notice_bytes;  ///< [2][ranks] AnswerNotice with its rows
  std::size_t control_end;
  // Payload.
  std::size_t arena, arena_bytes;        ///< receive regions
  std::size_t largest_result;            ///< bytes that a result can always have while fewer than
                                         ///< live_results are held
  std::size_t staging, staging_weights;  ///< y and weights of combine that lie outside the heap
  std::size_t chunks_out,
      chunks_in;  ///< [nodes][chunk_depth] of chunk_bytes, where there are several nodes
  std::size_t normal_end;
  std::size_t slots,
      slot_bytes;  ///< [2][ranks][low_latency_max_tokens] headers of tokens sent to this member
  std::size_t outbox, outbox_bytes;  ///< [2][low_latency_max_tokens] rows of this member's tokens
  std::size_t answers,
      answer_stride;  ///< [2][local_experts][low_latency_rows] rows of answer_stride bytes
  // Between nodes nothing can be fetched, so it is brought: a slot and its row together; answers in
  // the order of experts, then tokens, or a sum per token in the order in which the tokens came.
  std::size_t far_out, far_in,
      far_slots_bytes;  ///< [2][far] of low_latency_max_tokens headers, then as many rows
  std::size_t
      far_sums;  ///< [2][far][low_latency_max_tokens] of answer_stride: sums on their way out
  std::size_t far_answers;  ///< [2][far][max_answers] of answer_stride
  std::size_t total;

  explicit GroupLayout(const Shape& shape);

  std::size_t notice(std::uint64_t epoch, std::int32_t member, const Shape& shape) const {
    return notices + ((epoch & 1) * shape.ranks + member) * notice_bytes;
  }
  std::size_t slot_notice(std::uint64_t epoch, std::int32_t member, const Shape& shape) const {
    return slot_notices + ((epoch & 1) * shape.ranks + member) * kLine;
  }
  std::size_t answer_notice(std::uint64_t epoch, std::int32_t member, const Shape& shape) const {
    return answer_notices + ((epoch & 1) * shape.ranks + member) * answer_notice_bytes;
  }
  std::size_t slot(std::uint64_t epoch, std::int32_t source, std::int64_t index,
                   const Shape& shape) const {
    return slots + (((epoch & 1) * shape.ranks + source) * shape.low_latency_max_tokens + index) *
                       slot_bytes;
  }
  std::size_t outbox_row(std::uint64_t epoch, std::int64_t token, const Shape& shape) const {
    return outbox + ((epoch & 1) * shape.low_latency_max_tokens + token) * outbox_bytes;
  }
  std::size_t chunk(std::size_t ring, std::int32_t node, std::uint64_t number,
                    const Shape& shape) const {
    return ring + (node * shape.chunk_depth + number % shape.chunk_depth) * shape.chunk_bytes;
  }
  /// Bytes of a slot's header on its way to another node.
  std::size_t far_header_bytes(bool has_weights, const Shape& shape) const {
    return slot_bytes + (has_weights ? align_up(shape.top_k * sizeof(float), 8) : 0);
  }
  /// Where the slots lie that go to, or come from, member number `far` of other nodes.
  std::size_t far_slots(std::size_t area, std::uint64_t epoch, std::int32_t far,
                        const Shape& shape) const {
    return area + ((epoch & 1) * shape.far() + far) * far_slots_bytes;
  }
  std::size_t far_sum(std::uint64_t epoch, std::int32_t far, std::int64_t token,
                      const Shape& shape) const {
    return far_sums + (((epoch & 1) * shape.far() + far) * shape.low_latency_max_tokens + token) *
                          answer_stride;
  }
  std::size_t far_answer(std::uint64_t epoch, std::int32_t far, std::int64_t row,
                         const Shape& shape) const {
    return far_answers +
           (((epoch & 1) * shape.far() + far) * shape.max_answers() + row) * answer_stride;
  }
  std::size_t answer(std::uint64_t epoch, std::int32_t local_expert, std::int64_t row,
                     const Shape& shape) const {
    return answers +
           (((epoch & 1) * shape.local_experts + local_expert) * shape.low_latency_rows() + row) *
               answer_stride;
  }
};

}  // namespace shoal::ep::detail
