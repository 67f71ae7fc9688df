// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/layout/regions.hpp"

#include "ep/plan/regions.hpp"

namespace shoal::ep::detail {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

/// The places of combine rows: those that ranks share, then those of each rank.
void add_places(Regions& regions, const char* shared, const char* own, std::size_t start,
                std::size_t bytes, const DeviceLayout& layout, const Shape& shape) {
  const Regions::Dimension parity{"parity", 2}, token{"token", shape.low_latency_max_tokens};
  regions.add(shared, start,
              {parity, token, {"top-k slot", static_cast<std::int64_t>(layout.token_combine_rows)}},
              bytes);
  regions.add(own, start + layout.own_combine_rows * bytes,
              {parity,
               {"rank", shape.ranks},
               {"row of a token", static_cast<std::int64_t>(layout.rank_combine_rows)},
               token},
              bytes);
}

Regions collect(const DeviceLayout& layout, const Shape& shape) {
  Regions regions;
  add_common_regions(regions, layout, shape);
  const Regions::Dimension parity{"parity", 2}, rank{"rank", shape.ranks},
      source{"source rank", shape.ranks}, token{"token", shape.low_latency_max_tokens},
      piece{"piece", static_cast<std::int64_t>(layout.staged_pieces)};
  regions.add("dispatch_read", layout.dispatch_read, {rank}, kLine);
  regions.add("low_latency_notices", layout.low_latency_notices, {parity, source}, kLine);
  regions.add("slot_headers", layout.slot_headers,
              {parity, source, token, {"packet", static_cast<std::int64_t>(layout.packets)}},
              kPacketBytes);
  regions.add(
      "slot_counts", layout.slot_counts,
      {parity,
       source,
       {"local expert", shape.low_latency_max_tokens > 0 ? std::int64_t{shape.local_experts} : 0}},
      kWord);
  regions.add("slot_ready", layout.slot_ready, {parity, source, token}, kWord);
  add_places(regions, "combine_flags_shared", "combine_flags", layout.combine_flags, kWord, layout,
             shape);
  regions.add("staged_flags", layout.staged_flags, {rank, piece}, kWord);
  regions.add("staged_counts", layout.staged_counts, {rank, piece}, sizeof(std::uint32_t));

  regions.add("slot_weights", layout.slot_weights,
              {parity, source, token, {"top-k slot", shape.top_k}}, sizeof(float));
  regions.add("slots", layout.slots, {parity, source, token}, layout.slot_bytes);
  regions.add("combine_weights", layout.combine_weights,
              {parity, rank, token, {"top-k slot", shape.top_k}}, kWord);
  add_places(regions, "combine_rows_shared", "combine_rows", layout.combine_rows,
             layout.combine_row_bytes, layout, shape);
  return regions;
}

}  // namespace

std::vector<observe::MemoryRegion> regions_of(const DeviceLayout& layout, const Shape& shape) {
  return collect(layout, shape).take();
}

std::vector<observe::MemoryRegion> regions_of(const DeviceLayout& layout, const RailLayout& rails,
                                              const Shape& shape) {
  Regions regions = collect(layout, shape);
  const Regions::Dimension node{"node", shape.nodes}, chunk{"chunk", rails.depth};
  regions.add("rail_arrived", rails.arrived, {node, chunk}, kWord);
  regions.add("rail_read", rails.read, {node, chunk}, kWord);
  regions.add("rail_notices", rails.notices, {{"parity", 2}, {"rank", shape.ranks}},
              rails.notice_bytes);
  regions.add("rail_out", rails.out, {node, chunk}, rails.chunk_bytes);
  regions.add("rail_in", rails.in, {node, chunk}, rails.chunk_bytes);
  return regions.take();
}

std::vector<observe::MemoryRegion> regions_of(const DeviceLayout& layout, std::size_t outboxes,
                                              const Shape& shape) {
  Regions regions = collect(layout, shape);
  regions.add("outboxes", layout.total, {{"outbox", static_cast<std::int64_t>(outboxes)}},
              layout.total);
  return regions.take();
}

}  // namespace shoal::ep::detail
