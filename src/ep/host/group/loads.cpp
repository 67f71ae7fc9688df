// SPDX-License-Identifier: Apache-2.0
#include "ep/host/group/loads.hpp"

#include <set>

#include "base/log.hpp"
#include "fabric/fabric.hpp"
#include "world/state.hpp"

namespace shoal::ep::host {

std::vector<transport::Load> internode_loads(const Shape& shape, const GroupLayout& layout) {
  std::vector<transport::Load> loads;
  if (shape.nodes < 2) return loads;
  // A signal for each chunk sent, and one for each chunk read.
  if (shape.max_tokens > 0)
    loads.push_back({"normal mode", layout.chunk_depth, layout.chunk_bytes,
                     2 * static_cast<std::size_t>(layout.chunk_depth)});
  if (shape.low_latency_max_tokens == 0) return loads;
  // The receiver has read the operation before last: two may be on their way. Each has a notice, a
  // signal, and an acknowledgement of the opposite direction.
  constexpr std::size_t kOperations = 2, kSignals = 3 * kOperations;
  loads.push_back({"low_latency_dispatch", kOperations, layout.remote_slots_bytes, kSignals});
  // A put for each expert; together at most max_combine_rows.
  const auto experts = static_cast<std::size_t>(shape.local_experts);
  const std::size_t rows =
      static_cast<std::size_t>(shape.max_combine_rows()) * layout.combine_row_stride;
  loads.push_back(
      {"low_latency_combine", kOperations * experts, (rows + experts - 1) / experts, kSignals});
  return loads;
}

void report_shortfalls(const HostGroup& group) {
  const detail::GroupState& state = group.state;
  if (state.me != 0) return;
  const std::vector<transport::Load> loads = internode_loads(state.shape, group.layout);
  std::set<std::string> reported;  // most peers have the same queues
  for (std::int32_t rank = 0; rank < state.shape.ranks && !loads.empty(); ++rank) {
    if (state.nodes.here(rank)) continue;
    const Pe pe = state.world_pe(rank);
    const transport::Transport& route = state.world->fabric().route(pe);
    for (const std::string& shortfall : route.shortfalls(pe, loads))
      if (reported.insert(shortfall).second)
        log::warn("SHOAL-N398: ep::Group of {} ranks: transport {}: {}", state.shape.ranks,
                  route.name(), shortfall);
  }
}

}  // namespace shoal::ep::host
