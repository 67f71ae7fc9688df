#include "ep/backend.hpp"

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

Nodes nodes_of(const Team& team) {
  const std::vector<std::int32_t> domain_of_pe = team.state().world->load_store_domains();
  std::vector<std::int32_t> domains;
  std::vector<Pe> pes;
  for (Pe member = 0; member < team.size(); ++member) {
    pes.push_back(team.world_pe(member));
    domains.push_back(domain_of_pe[static_cast<std::size_t>(pes.back())]);
  }
  return make_nodes(domains, pes, team.my_pe());
}

std::size_t arena_bytes(const Shape& shape, const Device& device) {
  return device.kind == DeviceKind::cuda ? DeviceLayout(shape).arena_bytes : GroupLayout(shape).arena_bytes;
}

}  // namespace

GroupState::GroupState(const Team& owner, const GroupOptions& wanted)
    : team(owner),
      options(wanted),
      world(owner.state().world),
      me(owner.my_pe()),
      nodes(nodes_of(owner)),
      shape(make_shape(wanted, owner.size(), nodes.count, world->settings().ep_chunk)),
      timeout(wanted.timeout.count() > 0 ? wanted.timeout : owner.state().world->settings().timeout),
      device(device_of(*world)),
      heap_bytes(device.kind == DeviceKind::cuda ? DeviceLayout(shape).total : GroupLayout(shape).total),
      arena(arena_bytes(shape, device), device.kind == DeviceKind::cuda ? shape.live_results : 0) {
  if (device.kind == DeviceKind::host) {
    host = std::make_unique<host::HostGroup>(
        shape, options.threads > 0 ? options.threads : static_cast<std::int32_t>(world->settings().ep_threads));
    backend = host::make_backend(*this);
    return;
  }
#ifdef SHOAL_WITH_CUDA
  backend = cuda::make_backend(*this);
#endif
}

GroupState::~GroupState() = default;

}  // namespace shoal::ep::detail
