// SPDX-License-Identifier: Apache-2.0
// shoal/connectivity.hpp: how the PEs of a world reach each other.
//
//   const shoal::ConnectivityReport report = world.connectivity();  // collective
//   for (const shoal::PairConnectivity& pair : report.pairs)
//     if (const shoal::TransportVerdict* used = pair.chosen())
//       std::printf("PE %d - PE %d: %s%s\n", pair.a, pair.b, used->transport.c_str(),
//                   report.same_host(pair.a, pair.b) ? "" : ", other host");
//
// `shoal-info --connectivity` prints the report.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <shoal/team.hpp>

namespace shoal {

/// One transport for one pair of PEs.
struct TransportVerdict {
  std::string transport;  ///< "self", "shm", "ofi", ...
  /// In both directions: "load-store put get atomics signals"; "nothing".
  std::string capabilities;
  bool chosen = false;  ///< the pair uses this transport
  std::string why;      ///< why it is the pair's transport, or why it is not

  bool operator==(const TransportVerdict&) const = default;
};

/// A pair of PEs, a <= b. Both directions use the same transport.
struct PairConnectivity {
  Pe a = 0, b = 0;
  std::vector<TransportVerdict> transports;  ///< all of this build

  /// The transport that the pair uses; nullptr when none reaches.
  [[nodiscard]] const TransportVerdict* chosen() const {
    const auto found = std::find_if(transports.begin(), transports.end(),
                                    [](const TransportVerdict& one) { return one.chosen; });
    return found == transports.end() ? nullptr : &*found;
  }
};

/// Host and process of a PE.
struct PePlace {
  std::string host;             ///< name
  std::int32_t host_index = 0;  ///< equal for PEs of one host
  std::int32_t node = 0;        ///< equal for PEs of one node (SHOAL_NODE_SIZE)
  /// The NICs that the PE uses; nullopt when no pair of PEs needs a network.
  std::optional<std::vector<std::string>> nics;
};

struct ConnectivityReport {
  std::vector<PePlace> pes;             ///< by PE
  std::vector<PairConnectivity> pairs;  ///< every pair once, by a, then b; (0, 0) is PE 0 itself
  /// The pairs and transports of heaps in GPU memory; empty when the heaps are on the host.
  std::vector<PairConnectivity> heap_pairs;

  [[nodiscard]] bool same_host(Pe a, Pe b) const {
    return place(a).host_index == place(b).host_index;
  }
  [[nodiscard]] bool same_node(Pe a, Pe b) const { return place(a).node == place(b).node; }

 private:
  const PePlace& place(Pe pe) const { return pes.at(static_cast<std::size_t>(pe)); }
};

}  // namespace shoal
