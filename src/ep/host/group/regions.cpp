// SPDX-License-Identifier: Apache-2.0
#include "ep/host/group/regions.hpp"

#include "ep/plan/regions.hpp"

namespace shoal::ep::host {

std::vector<observe::MemoryRegion> regions_of(const GroupLayout& layout, const Shape& shape) {
  detail::Regions regions;
  detail::add_common_regions(regions, layout, shape);
  const detail::Regions::Dimension parity{"parity", 2}, rank{"rank", shape.ranks},
      source{"source rank", shape.ranks}, node{"node", shape.nodes},
      remote{"remote rank", shape.remote_ranks()}, token{"token", shape.low_latency_max_tokens},
      expert{"local expert", shape.local_experts};
  regions.add("slots_sent", layout.slots_sent, {rank}, kLine);
  regions.add("slots_read", layout.slots_read, {rank}, kLine);
  regions.add("combine_ready", layout.combine_ready, {rank}, kLine);
  regions.add("chunks_sent", layout.chunks_sent, {node}, kLine);
  regions.add("chunks_read", layout.chunks_read, {node}, kLine);
  regions.add("dispatch_notices", layout.dispatch_notices, {parity, source}, kLine);
  regions.add("combine_notices", layout.combine_notices, {parity, source},
              layout.combine_notice_bytes);

  const detail::Regions::Dimension chunk{"chunk", static_cast<std::int64_t>(layout.chunk_depth)};
  regions.add("chunks_out", layout.chunks_out, {node, chunk}, layout.chunk_bytes);
  regions.add("chunks_in", layout.chunks_in, {node, chunk}, layout.chunk_bytes);

  regions.add("slots", layout.slots, {parity, source, {"slot", shape.low_latency_max_tokens}},
              layout.slot_bytes);
  regions.add("outbox", layout.outbox, {parity, token}, layout.outbox_bytes);
  regions.add("combine_rows", layout.combine_rows,
              {parity, expert, {"row", shape.low_latency_rows()}}, layout.combine_row_stride);
  regions.add("remote_out", layout.remote_out, {parity, remote}, layout.remote_slots_bytes);
  regions.add("remote_in", layout.remote_in, {parity, remote}, layout.remote_slots_bytes);
  regions.add("remote_sums", layout.remote_sums, {parity, remote, token},
              layout.combine_row_stride);
  regions.add("remote_combine_rows", layout.remote_combine_rows,
              {parity, remote, {"row", shape.max_combine_rows()}}, layout.combine_row_stride);
  return regions.take();
}

}  // namespace shoal::ep::host
