// SPDX-License-Identifier: Apache-2.0
// connectivity_report.hpp: the connectivity map as a report: for every pair of PEs its transport,
// and why it uses none of the others.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "world/fabric/connectivity.hpp"

namespace shoal::detail {

/// One transport for one pair of PEs.
struct TransportVerdict {
  std::string transport;
  transport::Capabilities capabilities = 0;  ///< in both directions
  bool chosen = false;
  std::string why;  ///< why it is the pair's transport, or why it is not

  bool operator==(const TransportVerdict&) const = default;
};

/// A pair of PEs, a <= b.
struct PairReport {
  Pe a = 0, b = 0;
  std::vector<TransportVerdict> verdicts;  ///< all transports of this build, those of the map first
};

struct ConnectivityReport {
  std::vector<std::int32_t> host_of, node_of;  ///< by PE
  std::vector<std::string> hosts;              ///< by PE: the name of its host
  /// By PE: the NICs that it uses by the plan; nullopt where no pair of PEs needs a network.
  std::vector<std::optional<std::vector<std::string>>> nics;
  std::vector<PairReport> pairs;  ///< by a, then b
  /// The same for heaps in GPU memory; empty where they are on the host.
  std::vector<PairReport> heap;
};

/// The verdicts on all pairs of one map. A pure function. `reasons[pe]` is Connectivity::reasons of
/// PE `pe`; `networks` are the transports that are loaded only where some pair wants them.
std::vector<PairReport> explain(const Connectivity& map,
                                std::span<const std::vector<std::vector<std::string>>> reasons,
                                std::span<const std::string_view> networks,
                                std::optional<std::size_t> (*chosen)(const Connectivity&, Pe, Pe));

/// The report of an open world, the same on all PEs. Collective over the world. Throws as the
/// bootstrap's all-gather does.
ConnectivityReport report_connectivity(WorldState& state);

}  // namespace shoal::detail
