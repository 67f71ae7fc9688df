// SPDX-License-Identifier: Apache-2.0
// The automatic order of networks: what it depends on, and what the log says about the choice.
#include <fmt/ranges.h>

#include <algorithm>

#include "base/log.hpp"
#include "fabric/fabric.hpp"
#include "transport/module.hpp"

namespace shoal::detail {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// True if the order of networks is the automatic one.
bool in_automatic_order(const std::string& setting) {
  return setting == "automatic" || contains(setting, "network");
}

}  // namespace

std::string Fabric::rdma_obstacle(const Settings& settings) const {
  constexpr auto kAll = transport::capability::all_operations;
  const std::string& inside = settings.transport_inside;
  const std::string& between = settings.transport_between;
  bool asks = contains(inside, "network") || contains(between, "network");
  for (Pe pe = 0; pe < placement_.n_pes; ++pe)
    asks |= (in_automatic_order(inside) || in_automatic_order(between)) &&
            std::ranges::none_of(transports_, [&](const auto& transport) {
              return (transport->reach(pe).capabilities & kAll) == kAll;
            });
  return asks ? transport::rdma_obstacle(settings) : "";
}

void Fabric::log_networks(const Settings& settings) const {
  if (placement_.my_pe != 0 || transports_.size() == transport::factories().size()) return;
  std::vector<std::string_view> used;
  for (const std::size_t t : host_map_.transport_of)
    if (host_map_.names[t] != "self" && std::ranges::find(used, host_map_.names[t]) == used.end())
      used.push_back(host_map_.names[t]);
  const auto without = std::ranges::find_if_not(rdma_obstacles_, &std::string::empty);
  const bool rdma = without == rdma_obstacles_.end();
  const std::string users = fmt::format("SHOAL_TRANSPORT_INSIDE={}, SHOAL_TRANSPORT_BETWEEN={}",
                                        settings.transport_inside, settings.transport_between);
  if (in_automatic_order(settings.transport_inside) ||
      in_automatic_order(settings.transport_between)) {
    const std::string order = fmt::format("networks are tried in the order {}",
                                          fmt::join(automatic_networks(rdma), ", "));
    if (rdma)
      log::info("{}: every PE that needs one has an active RDMA port", order);
    else if (std::ranges::find(rdma_obstacles_, "") == rdma_obstacles_.end())
      log::info("{}: PE {} has no active RDMA port: {}", order, without - rdma_obstacles_.begin(),
                *without);
    else
      log::warn("SHOAL-N168: some PEs have an active RDMA port, but PE {} has none ({}): {}",
                without - rdma_obstacles_.begin(), *without, order);
  }
  for (std::size_t t = 0; t < host_map_.dropped.size(); ++t) {
    if (host_map_.dropped[t].empty()) continue;
    const std::string& name = host_map_.names[t];
    const std::string text = fmt::format("transport {} is not used ({}): {} takes its place ({})",
                                         name, host_map_.dropped[t], fmt::join(used, ", "), users);
    // Slower than what the machine has, not what the user has named, or a connection that failed.
    const bool expected = (name == "verbs" && rdma) || contains(settings.transport_inside, name) ||
                          contains(settings.transport_between, name) ||
                          networks_[t - transport::factories().size()].started;
    expected ? log::warn("{}", text) : log::info("{}", text);
  }
  for (const std::string_view name : used)
    if (std::ranges::find(transport::network_names(), name) != transport::network_names().end())
      log::info("transport {} carries data between PEs that do not share memory", name);
}

}  // namespace shoal::detail
