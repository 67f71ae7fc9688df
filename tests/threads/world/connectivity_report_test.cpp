// SPDX-License-Identifier: Apache-2.0
// The connectivity map with the reasons of all PEs, gathered from a world.
#include "shoal/connectivity.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shoal/world.hpp"
#include "support/made_up.hpp"

namespace shoal {
namespace {

Settings settings_of_nodes(std::int64_t node_size) {
  Settings settings;
  settings.symmetric_size = 1 << 20;
  settings.node_size = node_size;
  return settings;
}

const TransportVerdict& verdict(const ConnectivityReport& report, Pe a, Pe b,
                                std::string_view transport) {
  for (const PairConnectivity& pair : report.pairs)
    for (const TransportVerdict& found : pair.transports)
      if (pair.a == a && pair.b == b && found.transport == transport) return found;
  throw std::runtime_error("no verdict");
}

TEST(ConnectivityReport, IsTheSameOnAllPes) {
  run_threads(4, settings_of_nodes(2), [](World& world) {
    const ConnectivityReport report = world.connectivity();
    test::expect(report.pes.size() == 4, "PEs");
    for (Pe pe = 0; pe < 4; ++pe) {
      const PePlace& place = report.pes[static_cast<std::size_t>(pe)];
      test::expect(place.node == pe / 2, "nodes");
      test::expect(!place.host.empty() && report.same_host(0, pe), "hosts");
      test::expect(!place.nics.has_value(), "no network, no NICs");
    }
    test::expect(report.same_node(2, 3) && !report.same_node(1, 2), "same node");
    test::expect(report.pairs.size() == 10 && report.heap_pairs.empty(), "every pair once");
    const TransportVerdict& far = verdict(report, 0, 3, "shm");
    test::expect(far.chosen && far.capabilities == "put get atomics signals",
                 "other nodes of one host: shared memory without loads and stores");
    test::expect(verdict(report, 0, 3, "self").why == "another PE", "what PE 3 says as well");
    test::expect(
        verdict(report, 2, 3, "ucx").why == "not loaded: shm comes first and does everything",
        "ucx");
  });
}

// The report is collective and may be made repeatedly.
TEST(ConnectivityReport, MayBeAskedForAgain) {
  run_threads(2, settings_of_nodes(0), [](World& world) {
    for (int i = 0; i < 3; ++i) test::expect(world.connectivity().pairs.size() == 3, "three pairs");
  });
}

}  // namespace
}  // namespace shoal
