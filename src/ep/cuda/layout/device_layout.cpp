// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/layout/device_layout.hpp"

#include <algorithm>

#include "ep/plan/arena.hpp"
#include "ep/plan/cursor.hpp"
#include "ep/plan/row_format.hpp"

namespace shoal::ep::detail {
namespace {

template <typename... Factors>
std::size_t product(Factors... factors) {
  return checked_mul(Cursor::kOption, factors...);
}

}  // namespace

DeviceLayout::DeviceLayout(const Shape& shape) {
  const std::size_t ranks = shape.ranks, tokens = shape.low_latency_max_tokens, top_k = shape.top_k;
  Cursor cursor;
  for (std::size_t* signal : {&entered, &finished, &dispatch_read, &combine_read, &failed})
    *signal = cursor.take(ranks * kLine);
  notice_bytes =
      align_up(sizeof(DeviceNotice) + (ranks + shape.experts) * sizeof(std::int32_t), kLine);
  notices = cursor.take(product(2, ranks, notice_bytes));
  low_latency_notices = cursor.take(product(2, ranks, kLine));
  packets = (top_k + kTopkSlotsPerPacket - 1) / kTopkSlotsPerPacket;
  slot_headers = cursor.take(product(2, ranks, tokens, packets, kPacketBytes));
  slot_counts =
      cursor.take(tokens > 0 ? product(2, ranks, shape.local_experts, sizeof(std::uint64_t)) : 0);
  slot_ready = cursor.take(product(2, ranks, tokens, sizeof(std::uint64_t)));
  place_combine_rows(shape);
  combine_flags = cursor.take(product(combine_places, sizeof(std::uint64_t)));
  staged_pieces = 0;
  if (shape.combine_staging)
    staged_pieces = std::max((shape.max_tokens + kStagedRows - 1) / kStagedRows,
                             std::min(shape.max_tokens, kSmallPieces));
  staged_flags = cursor.take(product(ranks, staged_pieces, sizeof(std::uint64_t)));
  staged_counts = cursor.take(product(ranks, staged_pieces, sizeof(std::uint32_t)));
  control_end = cursor.aligned(kPageBytes);

  cursor.at = control_end;
  arena_bytes = largest_result = 0;
  const std::size_t staged = shape.combine_staging ? shape.max_received() : 0;
  staging_bytes = align_up(product(staged, shape.max_combine_row_bytes), kPageBytes);
  staging_weight_bytes = align_up(product(staged, top_k, sizeof(float)), kPageBytes);
  stages_in_arena = staged > 0 && shape.live_results == 1;
  if (shape.max_tokens > 0) {
    const SideRecord record(static_cast<std::uint32_t>(shape.max_scales * 4), shape.top_k);
    largest_result = RegionLayout(shape.max_received(), shape.max_row_bytes, record.bytes).total;
    arena_bytes =
        stages_in_arena
            ? Arena::bytes_for(2, std::max(largest_result, staging_bytes + staging_weight_bytes))
            : Arena::bytes_for(shape.live_results, largest_result);
  }
  arena = cursor.take(arena_bytes, kPageBytes);
  staging = cursor.take(stages_in_arena ? 0 : staging_bytes, kPageBytes);
  staging_weights = cursor.take(stages_in_arena ? 0 : staging_weight_bytes, kPageBytes);
  normal_end = cursor.aligned(kPageBytes);

  cursor.at = normal_end;
  slot_weights = cursor.take(product(2, ranks, tokens, top_k, sizeof(float)));
  slot_bytes = 0;
  for (const Quantize quantize : kQuantizations)
    slot_bytes = std::max(slot_bytes, align_up(RowFormat(quantize).wire_bytes(shape.hidden), 128));
  slots = cursor.take(product(2, ranks, tokens, slot_bytes));
  combine_weights = cursor.take(product(2, ranks, tokens, top_k, sizeof(std::uint64_t)));
  // A LogFMT-10 row has its scales next to units of 16 channels.
  combine_row_bytes =
      align_up(align_up(shape.hidden, 16) * 2 + scale_groups(shape.hidden) * 4, 128);
  combine_rows = cursor.take(product(combine_places, combine_row_bytes));
  total = cursor.aligned(kPageBytes);
}

void DeviceLayout::place_combine_rows(const Shape& shape) {
  const std::size_t ranks = shape.ranks, tokens = shape.low_latency_max_tokens, top_k = shape.top_k;
  const std::size_t most = std::min(shape.top_k, shape.local_experts);  // of a rank, for a token
  token_combine_rows = top_k;
  rank_combine_rows = 0;
  // Between nodes, rows of a rank that lie together travel together. As many as fit into twice the
  // memory have such places: all where there are few ranks.
  if (shape.internode) rank_combine_rows = std::min(most, (top_k + ranks - 1) / ranks);
  if (shape.mask_failed || ranks * most <= token_combine_rows + ranks * rank_combine_rows)
    rank_combine_rows = shape.mask_failed || shape.internode ? most : 0;
  if (rank_combine_rows == most) token_combine_rows = 0;
  own_combine_rows = product(2, tokens, token_combine_rows);
  combine_places = own_combine_rows + product(2, ranks, tokens, rank_combine_rows);
}

}  // namespace shoal::ep::detail
