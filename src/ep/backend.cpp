#include "ep/backend.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "ep/device_layout.hpp"
#include "ep/host/backend.hpp"
#include "ep/host/group.hpp"
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
std::vector<std::int32_t> domains_of(const Team& team, const std::vector<std::int32_t>& domain_of_pe) {
  std::vector<std::int32_t> domains;
  for (Pe member = 0; member < team.size(); ++member)
    domains.push_back(domain_of_pe[static_cast<std::size_t>(team.world_pe(member))]);
  return domains;
}

bool is_staged(const Team& team, const Device& device) {
  if (device.kind == DeviceKind::host) return false;
  const auto domains = domains_of(team, team.state().world->load_store_domains());
  return std::any_of(domains.begin(), domains.end(), [&](auto domain) { return domain != domains.front(); });
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

}  // namespace

GroupState::GroupState(const Team& owner, const GroupOptions& wanted)
    : team(owner),
      options(wanted),
      world(owner.state().world),
      me(owner.my_pe()),
      device(device_of(*world)),
      staged(is_staged(owner, device)),
      nodes(nodes_of(owner, device, staged)),
      shape(make_shape(wanted, owner.size(), nodes.count, world->settings().ep_chunk)),
      timeout(wanted.timeout.count() > 0 ? wanted.timeout : owner.state().world->settings().timeout),
      heap_bytes(on_host(*this) ? GroupLayout(shape).total : DeviceLayout(shape).total),
      arena(on_host(*this) ? GroupLayout(shape).arena_bytes : DeviceLayout(shape).arena_bytes,
            on_host(*this) ? 0 : shape.live_results) {
  if (on_host(*this)) {
    host = std::make_unique<host::HostGroup>(
        shape, options.threads > 0 ? options.threads : static_cast<std::int32_t>(world->settings().ep_threads));
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
