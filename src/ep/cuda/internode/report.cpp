// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/internode/report.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/log.hpp"
#include "fabric/fabric.hpp"
#include "team/team_state.hpp"
#include "world/state.hpp"

namespace shoal::ep::cuda {
namespace {

/// True if the PE is on this node and the settings allow its GPU to be reached.
bool should_reach(const shoal::detail::WorldState& world, Pe pe) {
  if (!world.placement().same_node(pe)) return false;
  const auto& allowed = shoal::detail::order_of(world.fabric().gpu_map(), world.my_pe(), pe);
  return std::find(allowed.begin(), allowed.end(), "cuda_p2p") != allowed.end();
}

/// Names the network path by which kernels send rows.
std::string executor_of(const InternodeWays& ways) {
  const auto name = [](NetworkPath path) {
    return path == NetworkPath::nic ? "through queues of the NIC" : "through the proxy";
  };
  if (ways.normal && ways.low_latency && ways.normal != ways.low_latency)
    return fmt::format("normal mode {}, low-latency mode {}", name(*ways.normal),
                       name(*ways.low_latency));
  return name(ways.normal ? *ways.normal : *ways.low_latency);
}

void report_lazy_loading(Pe me, const InternodeWays& ways) {
  if (ways.normal != NetworkPath::proxy && ways.low_latency != NetworkPath::proxy) return;
  if (!ways.loads_lazily) return;
  log::info(
      "PE {}: calls of this ep::Group return when the GPU has executed them: CUDA loads a kernel when it is first "
      "used, which can hold up the copies that the proxy makes for them. With CUDA_MODULE_LOADING=EAGER they return "
      "when their kernels are queued",
      me);
}

}  // namespace

void report_internode(const Team& team, const InternodeWays& ways) {
  const auto& world = *state_of(team).world;
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
        "SHOAL-N558: PE {}: kernels of this ep::Group send rows over the network, {}: the heap of PE {} is out of reach: {}",
        world.my_pe(), executor_of(ways), *named, why);
    return;
  }
  const char* const rows = ways.normal        ? "low-latency rows"
                           : ways.low_latency ? "rows of normal mode"
                                              : "rows";
  log::print(
      level,
      "SHOAL-N558: PE {}: {} of this ep::Group go through host memory, which is slower, and its calls cannot be captured in "
      "graphs: the heap of PE {} is out of reach: {}{}{}",
      world.my_pe(), rows, *named, why,
      ways.reason.empty() ? "" : "; kernels do not send them: ", ways.reason);
  if (ways.normal || ways.low_latency)
    log::print(log::Level::info, "PE {}: kernels of this ep::Group send {} over the network, {}",
               world.my_pe(), ways.normal ? "rows of normal mode" : "low-latency rows",
               executor_of(ways));
}

}  // namespace shoal::ep::cuda
