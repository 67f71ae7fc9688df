// SPDX-License-Identifier: Apache-2.0
#include "ep/backend.hpp"

#include <algorithm>
#include <thread>

#include "base/check.hpp"
#include "base/log.hpp"
#include "ep/cuda/layout.hpp"
#include "ep/host/backend.hpp"
#include "ep/host/group.hpp"
#include "world/fabric/fabric.hpp"
#ifdef SHOAL_WITH_CUDA
#include "ep/cuda/backend.hpp"
#endif

namespace shoal::ep::detail {
namespace {

Device device_of(const shoal::detail::WorldState& world) {
#ifdef SHOAL_WITH_CUDA
  if (world.cuda() != nullptr) return {DeviceKind::cuda, world.cuda()->device};
#endif
  (void)world;
  return {};
}

/// By member: equal numbers where loads and stores reach.
std::vector<std::int32_t> domains_of(const Team& team,
                                     const std::vector<std::int32_t>& domain_of_pe) {
  std::vector<std::int32_t> domains;
  for (Pe member = 0; member < team.size(); ++member)
    domains.push_back(domain_of_pe[static_cast<std::size_t>(team.world_pe(member))]);
  return domains;
}

bool is_staged(const Team& team, const Device& device) {
  if (device.kind == DeviceKind::host) return false;
  const auto domains = domains_of(team, team.state().world->load_store_domains());
  return std::any_of(domains.begin(), domains.end(),
                     [&](auto domain) { return domain != domains.front(); });
}

Nodes nodes_of(const Team& team, const Device& device, bool staged) {
  if (device.kind == DeviceKind::cuda && !staged) {
    Nodes one;
    one.size = team.size();
    one.node_of.assign(static_cast<std::size_t>(team.size()), 0);
    one.rail = team.my_pe();
    return one;
  }
  std::vector<Pe> pes;
  for (Pe member = 0; member < team.size(); ++member) pes.push_back(team.world_pe(member));
  return make_nodes(domains_of(team, team.state().world->host_domains()), pes, team.my_pe());
}

/// Whether the group's memory is on the host.
bool on_host(const GroupState& group) {
  return group.device.kind == DeviceKind::host || group.staged;
}

/// Of this member on the host backend. Where the caller's own experts run on the host, cores are
/// theirs to give; those of a PE that has a GPU have nothing else to do while its rows go through
/// the host.
std::int32_t threads_of(const GroupState& group) {
  if (group.options.threads > 0) return group.options.threads;
  if (const std::int64_t wanted = group.world->settings().ep_threads; wanted > 0)
    return static_cast<std::int32_t>(wanted);
  if (!group.staged) return 1;
  constexpr std::int64_t kMost = 8;  // memory is no faster with more
  const std::int64_t here = group.world->placement().pes_on_host();
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(std::thread::hardware_concurrency() / here, 1, kMost));
}

/// Whether the two are on one node, whose GPUs the settings allow to reach each other.
bool should_reach(const shoal::detail::WorldState& world, Pe pe) {
  if (!world.placement().same_node(pe)) return false;
  const auto& allowed = shoal::detail::order_of(world.fabric().gpu_map(), world.my_pe(), pe);
  return std::find(allowed.begin(), allowed.end(), "cuda_p2p") != allowed.end();
}

}  // namespace

void report_staging(const Team& team) {
  const auto& world = *team.state().world;
  std::optional<Pe> named;  // rather one that should be in reach
  bool surprising = false;
  for (Pe member = 0; member < team.size() && !surprising; ++member) {
    const Pe pe = team.world_pe(member);
    if (world.peer_base(pe) != nullptr) continue;
    surprising = should_reach(world, pe);
    if (surprising || !named) named = pe;
  }
  if (!named) return;  // those who do not reach each other say it
  log::print(
      surprising ? log::Level::warn : log::Level::info,
      "PE {}: rows of this ep::Group go through host memory, which is slower, and its calls cannot be captured "
      "in graphs: the heap of PE {} is out of reach: {}",
      world.my_pe(), *named, shoal::detail::why_out_of_reach(world, *named));
}

GroupState::GroupState(const Team& owner, const GroupOptions& wanted)
    : team(owner),
      options(wanted),
      world(owner.state().world),
      me(owner.my_pe()),
      device(device_of(*world)),
      staged(is_staged(owner, device)),
      nodes(nodes_of(owner, device, staged)),
      shape(make_shape(wanted, owner.size(), nodes.count, world->settings())),
      timeout(wanted.timeout.count() > 0 ? wanted.timeout
                                         : owner.state().world->settings().timeout),
      heap_bytes(on_host(*this) ? GroupLayout(shape).total : DeviceLayout(shape).total),
      arena(on_host(*this) ? GroupLayout(shape).arena_bytes : DeviceLayout(shape).arena_bytes,
            on_host(*this) ? 0 : shape.live_results) {
  if (on_host(*this)) {
    host = std::make_unique<host::HostGroup>(shape, threads_of(*this));
    backend = host::make_backend(*this);
    if (!staged) return;
  }
#ifdef SHOAL_WITH_CUDA
  if (staged) {
    backend = cuda::make_staged_backend(*this, std::move(backend));
    return;
  }
  backend = cuda::make_backend(*this);
#endif
}

GroupState::~GroupState() = default;

}  // namespace shoal::ep::detail
