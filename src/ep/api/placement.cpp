// SPDX-License-Identifier: Apache-2.0
#include "ep/api/placement.hpp"

#include <algorithm>

#include "ep/host/backend.hpp"
#include "fabric/fabric.hpp"
#ifdef SHOAL_WITH_CUDA
#include "ep/cuda/backend.hpp"
#include "pe/memory.hpp"
#endif

namespace shoal::ep::detail {
namespace {

/// Indexed by rank: equal numbers where loads and stores reach.
std::vector<std::int32_t> domains_of(const Team& team,
                                     const std::vector<std::int32_t>& domain_of_pe) {
  std::vector<std::int32_t> domains;
  for (std::int32_t rank = 0; rank < team.size(); ++rank)
    domains.push_back(domain_of_pe[static_cast<std::size_t>(team.world_pe(rank))]);
  return domains;
}

/// Hosts are nodes.
Nodes nodes_of(const Team& team) {
  std::vector<Pe> pes;
  for (std::int32_t rank = 0; rank < team.size(); ++rank) pes.push_back(team.world_pe(rank));
  const auto& fabric = state_of(team).world->fabric();
  return make_nodes(domains_of(team, fabric.host_domains()), pes, team.my_pe());
}

#ifdef SHOAL_WITH_CUDA
bool all_reach(const Team& team) {
  const auto domains = domains_of(team, state_of(team).world->fabric().heap_domains());
  return std::all_of(domains.begin(), domains.end(),
                     [&](auto domain) { return domain == domains.front(); });
}

Nodes one_node(const Team& team) {
  Nodes nodes;
  nodes.size = team.size();
  nodes.node_of.assign(static_cast<std::size_t>(team.size()), 0);
  nodes.rail = team.my_pe();
  return nodes;
}
#endif

/// On the host, cores belong to the caller's experts.
std::unique_ptr<Backend> make_host_backend(GroupState& state) {
  return host::make_backend(state, 1);
}

}  // namespace

GroupPlacement place_group(const Team& team) {
#ifdef SHOAL_WITH_CUDA
  if (const auto* const gpu = state_of(team).world->memory().cuda(); gpu != nullptr) {
    const Device device{DeviceKind::cuda, gpu->device};
    if (all_reach(team)) return {device, one_node(team), cuda::make_backend};
    return {device, nodes_of(team), cuda::make_internode_backend};
  }
#endif
  return {{}, nodes_of(team), make_host_backend};
}

}  // namespace shoal::ep::detail
