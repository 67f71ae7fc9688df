// SPDX-License-Identifier: Apache-2.0
// connectivity_report.hpp: the connectivity map for people: for every pair of PEs the transport it
// uses and why none of the others, with what every PE knows (requirements A1, D12).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "world/fabric/connectivity.hpp"

namespace shoal::detail {

/// One transport, as one pair of PEs sees it.
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
  std::vector<TransportVerdict> verdicts;  ///< of every transport of this build, the map's first
};

struct ConnectivityReport {
  std::vector<std::int32_t> host_of, node_of;  ///< by PE
  std::vector<std::string> hosts;              ///< by PE: the name of its host
  /// By PE: the NICs of the plan that it uses; nothing where no pair of PEs needs a network.
  std::vector<std::optional<std::vector<std::string>>> nics;
  std::vector<PairReport> pairs;  ///< by a, then b
  std::vector<PairReport>
      heap;  ///< the same for heaps in GPU memory; empty where they are on the host
};

/// The verdicts on all pairs of one map. `reasons[pe]` is what PE `pe` says, by PE and transport of
/// the map, as Connectivity::reasons; `networks` are the transports that are loaded when some pair
/// wants one. Pure.
std::vector<PairReport> explain(const Connectivity& map,
                                std::span<const std::vector<std::vector<std::string>>> reasons,
                                std::span<const std::string_view> networks,
                                std::optional<std::size_t> (*chosen)(const Connectivity&, Pe, Pe));

/// The report of an open world, the same on all PEs. Collective over the world: every PE calls.
/// Throws as the bootstrap's all-gather does.
ConnectivityReport report_connectivity(WorldState& state);

}  // namespace shoal::detail
