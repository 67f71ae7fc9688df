// SPDX-License-Identifier: Apache-2.0
#include "ep/backend.hpp"

#include <algorithm>
#include <thread>

#include "base/check.hpp"
#include "base/log.hpp"
#include "ep/host/backend.hpp"
#include "fabric/fabric.hpp"
#ifdef SHOAL_WITH_CUDA
#include "ep/cuda/backend.hpp"
#include "pe/memory.hpp"
#endif

namespace shoal::ep::detail {
namespace {

Device device_of(const shoal::detail::WorldState& world) {
#ifdef SHOAL_WITH_CUDA
  if (world.memory().cuda() != nullptr) return {DeviceKind::cuda, world.memory().cuda()->device};
#endif
  (void)world;
  return {};
}

/// By rank: equal numbers where loads and stores reach.
std::vector<std::int32_t> domains_of(const Team& team,
                                     const std::vector<std::int32_t>& domain_of_pe) {
  std::vector<std::int32_t> domains;
  for (std::int32_t rank = 0; rank < team.size(); ++rank)
    domains.push_back(domain_of_pe[static_cast<std::size_t>(team.world_pe(rank))]);
  return domains;
}

bool all_reach(const Team& team) {
  const auto domains = domains_of(team, team.state().world->fabric().heap_domains());
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

#ifdef SHOAL_WITH_CUDA
/// Threads of the host backend behind a staged group. The cores of a PE that has a GPU are idle
/// while its rows pass through the host.
std::int32_t threads_when_staged(const GroupState& group) {
  constexpr std::int64_t kMost = 8;  // saturates memory bandwidth
  const std::int64_t here = group.world->placement().pes_on_host();
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(std::thread::hardware_concurrency() / here, 1, kMost));
}
#endif

/// Whether the PE is on this node and the settings allow its GPU to be reached.
bool should_reach(const shoal::detail::WorldState& world, Pe pe) {
  if (!world.placement().same_node(pe)) return false;
  const auto& allowed = shoal::detail::order_of(world.fabric().gpu_map(), world.my_pe(), pe);
  return std::find(allowed.begin(), allowed.end(), "cuda_p2p") != allowed.end();
}

}  // namespace

std::string executor_of(const InternodeWays& ways) {
  constexpr const char* kNic = "through queues of the NIC";
  constexpr const char* kProxy = "through the proxy";
  if (!ways.normal && !ways.low_latency) return "";
  const bool normal = ways.normal_by_nic, low_latency = ways.low_latency_by_nic;
  if (!ways.normal || !ways.low_latency || normal == low_latency)
    return (ways.normal ? normal : low_latency) ? kNic : kProxy;
  return fmt::format("normal mode {}, low-latency mode {}", normal ? kNic : kProxy,
                     low_latency ? kNic : kProxy);
}

namespace {

void report_lazy_loading(Pe me, const InternodeWays& ways) {
  const bool by_proxy =
      (ways.normal && !ways.normal_by_nic) || (ways.low_latency && !ways.low_latency_by_nic);
  if (!by_proxy || !ways.loads_lazily) return;
  log::info(
      "PE {}: calls of this ep::Group return when the GPU has executed them: CUDA loads a kernel when it is first "
      "used, which can hold up the copies that the proxy makes for them. With CUDA_MODULE_LOADING=EAGER they return "
      "when their kernels are queued",
      me);
}

}  // namespace

void report_internode(const Team& team, const InternodeWays& ways) {
  const auto& world = *team.state().world;
  report_lazy_loading(world.my_pe(), ways);
  std::optional<Pe> named;  // preferably one that should be in reach
  bool surprising = false;
  for (std::int32_t rank = 0; rank < team.size() && !surprising; ++rank) {
    const Pe pe = team.world_pe(rank);
    if (world.fabric().peer_base(pe) != nullptr) continue;
    surprising = should_reach(world, pe);
    if (surprising || !named) named = pe;
  }
  if (!named) return;  // PEs that do not reach each other report it
  const std::string why = world.fabric().why_out_of_reach(*named);
  const auto level = surprising ? log::Level::warn : log::Level::info;
  if (ways.normal && ways.low_latency) {
    log::print(
        level,
        "PE {}: kernels of this ep::Group send rows over the network, {}: the heap of PE {} is out of reach: {}",
        world.my_pe(), executor_of(ways), *named, why);
    return;
  }
  const char* const rows = ways.normal        ? "low-latency rows"
                           : ways.low_latency ? "rows of normal mode"
                                              : "rows";
  log::print(
      level,
      "PE {}: {} of this ep::Group go through host memory, which is slower, and its calls cannot be captured in "
      "graphs: the heap of PE {} is out of reach: {}{}{}",
      world.my_pe(), rows, *named, why,
      ways.reason.empty() ? "" : "; kernels do not send them: ", ways.reason);
  if (ways.normal || ways.low_latency)
    log::print(log::Level::info, "PE {}: kernels of this ep::Group send {} over the network, {}",
               world.my_pe(), ways.normal ? "rows of normal mode" : "low-latency rows",
               executor_of(ways));
}

GroupPlacement place_group(const Team& team) {
  const auto& world = *team.state().world;
  const Device device = device_of(world);
  if (device.kind == DeviceKind::cuda && all_reach(team))
    return {device, BackendKind::cuda, one_node(team)};
  std::vector<Pe> pes;
  for (std::int32_t rank = 0; rank < team.size(); ++rank) pes.push_back(team.world_pe(rank));
  return {device, device.kind == DeviceKind::cuda ? BackendKind::staged : BackendKind::host,
          make_nodes(domains_of(team, world.fabric().host_domains()), pes, team.my_pe())};
}

std::unique_ptr<Backend> make_backend(GroupState& state, BackendKind kind) {
  // On the host, cores belong to the caller's experts.
  if (kind == BackendKind::host) return host::make_backend(state, 1);
#ifdef SHOAL_WITH_CUDA
  if (kind == BackendKind::staged)
    return cuda::make_internode_backend(
        state,
        cuda::make_staged_backend(state, host::make_backend(state, threads_when_staged(state))));
  return cuda::make_backend(state);
#else
  fail(Code::unsupported, "this build has no {} backend for an ep::Group", name_of(kind));
#endif
}

}  // namespace shoal::ep::detail
