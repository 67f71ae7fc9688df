// SPDX-License-Identifier: Apache-2.0
#include "startup/summary.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/log.hpp"
#include "fabric/fabric.hpp"
#include "pe/control.hpp"
#include "pe/memory.hpp"
#include "pe/placement.hpp"
#include "shoal/version.hpp"

namespace shoal::detail {
namespace {

/// "shm (3), ofi (4)": transports in use by number of PEs, in the order of preference.
std::string transports_of(const Connectivity& map) {
  std::vector<std::size_t> counts(map.names.size());
  for (const std::size_t transport : map.transport_of)
    if (transport < counts.size()) ++counts[transport];
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0) parts.push_back(fmt::format("{} ({})", map.names[i], counts[i]));
  return fmt::format("{}", fmt::join(parts, ", "));
}

void warn_of_settings(const Settings& settings) {
  std::vector<std::string> warnings = settings.environment_warnings;
  if (settings.flight_signal != "none" && settings.flight_dir.empty())
    warnings.push_back(fmt::format(
        "SHOAL-N193: SHOAL_FLIGHT_SIGNAL is {} but SHOAL_FLIGHT_DIR is empty: no handler is "
        "installed, and the signal writes no record",
        settings.flight_signal));
  log::warn_once(warnings);
}

/// "Shoal 0.2.0 (protocol 12): 8 PEs on 2 hosts, 4 per node; heap of 1073741824 bytes per PE in
/// host memory; ...". The same on all PEs.
std::string describe_world(const Placement& placement, const Memory& memory,
                           const Settings& settings) {
  const auto hosts = 1 + *std::ranges::max_element(placement.host_of);
  return fmt::format(
      "Shoal {} (protocol {}): {} PEs on {} host{}, {} per node; heap of {} bytes per PE in "
      "{} memory, {} bytes of staging; at most {} teams; timeout {} ms",
      SHOAL_VERSION, kProtocolVersion, placement.n_pes, hosts, hosts == 1 ? "" : "s",
      placement.pes_per_node, memory.heap_size(), memory.heap_on_gpu() ? "GPU" : "host",
      settings.staging_size, settings.max_teams, settings.timeout.count());
}

/// "PE 3 on node 0: transports self (1 PE), shm (3), ofi (4); NICs mlx5_0:1".
std::string describe_pe(const Placement& placement, const Fabric& fabric) {
  std::string text =
      fmt::format("PE {} on node {}: transports {}", placement.my_pe,
                  placement.node_of[placement.me()], transports_of(fabric.host_map()));
  if (!fabric.gpu_map().names.empty())
    text += fmt::format("; to heaps in GPU memory {}", transports_of(fabric.gpu_map()));
  if (const auto& nics = fabric.nics())
    text += nics->empty() ? "; no NIC" : fmt::format("; NICs {}", fmt::join(*nics, ", "));
  return text;
}

}  // namespace

void log_summary(const Placement& placement, const Memory& memory, const Fabric& fabric,
                 const Settings& settings) {
  if (placement.my_pe == 0) warn_of_settings(settings);
  if (!log::enabled(log::Level::info)) return;
  if (placement.my_pe == 0) log::info("{}", describe_world(placement, memory, settings));
  log::info("{}", describe_pe(placement, fabric));
}

}  // namespace shoal::detail
