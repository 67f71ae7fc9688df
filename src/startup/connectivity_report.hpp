// SPDX-License-Identifier: Apache-2.0
// connectivity_report.hpp: makes the public report (shoal/connectivity.hpp) from the connectivity
// map.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/connectivity.hpp"
#include "shoal/connectivity.hpp"

namespace shoal::detail {

/// The verdicts on all pairs of one map. A pure function. `reasons[pe]` is Connectivity::reasons of
/// PE `pe`; `networks` are the transports that are loaded only where some pair wants them.
std::vector<PairConnectivity> explain(
    const Connectivity& map, std::span<const std::vector<std::vector<std::string>>> reasons,
    std::span<const std::string_view> networks,
    std::optional<std::size_t> (*chosen)(const Connectivity&, Pe, Pe));

/// The report of an open world, the same on all PEs. Collective over the world. Throws as the
/// bootstrap's all-gather does.
ConnectivityReport report_connectivity(WorldState& state);

}  // namespace shoal::detail
