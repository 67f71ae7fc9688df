// SPDX-License-Identifier: Apache-2.0
#include "ep/host/group/layout.hpp"

#include <algorithm>

#include "base/align.hpp"
#include "base/checked.hpp"
#include "ep/host/group/wire.hpp"
#include "ep/plan/arena.hpp"
#include "ep/plan/cursor.hpp"

namespace shoal::ep::host {
namespace {

using detail::Cursor;
using detail::option_or;
using detail::scale_groups;

template <typename... Factors>
std::size_t product(Factors... factors) {
  return checked_mul(Cursor::kOption, factors...);
}

}  // namespace

ReceiveLayout::ReceiveLayout(std::int64_t rows, std::size_t row_bytes, std::size_t scale_bytes,
                             std::int32_t topk_slots, std::int64_t numbered) {
  Cursor cursor;
  x = cursor.take(rows * row_bytes);
  scales = cursor.take(rows * scale_bytes);
  topk_idx = cursor.take(rows * topk_slots * sizeof(std::int64_t));
  weights = cursor.take(rows * topk_slots * sizeof(float));
  source_token = cursor.take(rows * sizeof(std::int32_t));
  topk_rows = cursor.take(numbered * sizeof(std::int32_t));
  total = align_up(cursor.at, kPageBytes);
}

GroupLayout::GroupLayout(const Shape& shape, const Settings& settings) {
  Cursor cursor;
  place_control(cursor, shape);
  cursor.at = control_end = cursor.aligned(kPageBytes);
  place_normal(cursor, shape, settings);
  cursor.at = normal_end = cursor.aligned(kPageBytes);
  place_low_latency(cursor, shape);
  total = cursor.aligned(kPageBytes);
}

void GroupLayout::place_control(Cursor& cursor, const Shape& shape) {
  const std::size_t ranks = shape.ranks;
  entered = cursor.take(ranks * kLine);
  finished = cursor.take(ranks * kLine);
  slots_sent = cursor.take(ranks * kLine);
  slots_read = cursor.take(ranks * kLine);
  combine_ready = cursor.take(ranks * kLine);
  combine_read = cursor.take(ranks * kLine);
  failed = cursor.take(ranks * kLine);
  chunks_sent = cursor.take(shape.nodes * kLine);
  chunks_read = cursor.take(shape.nodes * kLine);
  notice_bytes =
      align_up(sizeof(NormalNotice) + (ranks + shape.experts) * sizeof(std::int32_t), kLine);
  notices = cursor.take(product(2, ranks, notice_bytes));
  dispatch_notices = cursor.take(2 * ranks * kLine);
  combine_notice_bytes =
      align_up(sizeof(LowLatencyCombineNotice) + shape.local_experts * sizeof(std::int32_t), kLine);
  combine_notices = cursor.take(product(2, ranks, combine_notice_bytes));
}

void GroupLayout::place_normal(Cursor& cursor, const Shape& shape, const Settings& settings) {
  arena_bytes = largest_result = 0;
  if (shape.max_tokens > 0) {
    largest_result =
        ReceiveLayout(shape.max_received(), shape.max_row_bytes, shape.max_scales * 4, shape.top_k)
            .total;
    arena_bytes = detail::Arena::first_fit_bytes_for(shape.live_results, largest_result);
  }
  arena = cursor.take(arena_bytes, kPageBytes);
  const std::int64_t staged = shape.combine_staging ? shape.max_received() : 0;
  staging = cursor.take(product(staged, shape.max_combine_row_bytes), kPageBytes);
  staging_weights = cursor.take(product(staged, shape.top_k, sizeof(float)), kPageBytes);
  chunk_bytes = chunk_depth = 0;
  if (shape.nodes > 1 && shape.max_tokens > 0) {
    const TokenMessage token(shape.max_row_bytes, shape.max_scales * 4, shape.top_k, true);
    const SumMessage sum(shape.max_combine_row_bytes, shape.top_k, true);
    chunk_depth = detail::chunk_depth(shape.chunks_in_flight, settings.ep_depth, false);
    const std::size_t wished = option_or(shape.chunk_bytes, settings.ep_chunk);
    chunk_bytes =
        align_up(std::max(wished, sizeof(ChunkHeader) + std::max(token.total, sum.total)), kLine);
  }
  const std::size_t ring = product(shape.nodes, chunk_depth, chunk_bytes);
  chunks_out = cursor.take(ring, kPageBytes);
  chunks_in = cursor.take(ring, kPageBytes);
}

void GroupLayout::place_low_latency(Cursor& cursor, const Shape& shape) {
  const std::size_t ranks = shape.ranks;
  const std::size_t tokens = shape.low_latency_max_tokens;
  const std::size_t remote = shape.remote_ranks();
  slot_bytes = align_up(sizeof(SlotHeader) + shape.top_k * sizeof(std::int32_t), 8);
  slots = cursor.take(product(2, ranks, tokens, slot_bytes), kPageBytes);
  outbox_bytes = 0;
  for (const Quantize quantize : detail::kQuantizations)
    outbox_bytes = std::max(outbox_bytes, outbox_row_bytes(shape.hidden, quantize));
  outbox = cursor.take(product(2, tokens, outbox_bytes), kPageBytes);
  // LogFMT keeps its ranges before the row. Rows in e4m3 are shorter, scales included.
  combine_row_stride = align_up(shape.hidden * 2 + scale_groups(shape.hidden) * 4, 16);
  combine_rows = cursor.take(
      product(2, shape.local_experts, shape.low_latency_rows(), combine_row_stride), kPageBytes);
  remote_slots_bytes =
      align_up(tokens * remote_header_bytes(true, shape), kLine) + product(tokens, outbox_bytes);
  remote_out = cursor.take(product(2, remote, remote_slots_bytes), kPageBytes);
  remote_in = cursor.take(product(2, remote, remote_slots_bytes), kPageBytes);
  remote_sums = cursor.take(product(2, remote, tokens, combine_row_stride), kPageBytes);
  remote_combine_rows =
      cursor.take(product(2, remote, shape.max_combine_rows(), combine_row_stride), kPageBytes);
}

}  // namespace shoal::ep::host
