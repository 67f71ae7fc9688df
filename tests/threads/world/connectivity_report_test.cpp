// SPDX-License-Identifier: Apache-2.0
// The connectivity map with the reasons of all PEs, gathered from a world.
#include "world/fabric/connectivity_report.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "shoal/world.hpp"
#include "support/made_up.hpp"

namespace shoal {
namespace {

using detail::PairReport;
using detail::TransportVerdict;

Settings settings_of_nodes(std::int64_t node_size) {
  Settings settings;
  settings.symmetric_size = 1 << 20;
  settings.node_size = node_size;
  return settings;
}

const TransportVerdict& verdict(const detail::ConnectivityReport& report, Pe a, Pe b,
                                std::string_view transport) {
  for (const PairReport& pair : report.pairs)
    for (const TransportVerdict& found : pair.verdicts)
      if (pair.a == a && pair.b == b && found.transport == transport) return found;
  throw std::runtime_error("no verdict");
}

TEST(ConnectivityReport, IsTheSameOnAllPes) {
  run_threads(4, settings_of_nodes(2), [](World& world) {
    const detail::ConnectivityReport report = detail::report_connectivity(world.state());
    test::expect(report.node_of == std::vector<std::int32_t>{0, 0, 1, 1}, "nodes");
    test::expect(report.hosts.size() == 4 && !report.hosts[3].empty(), "hosts");
    test::expect(std::none_of(report.nics.begin(), report.nics.end(),
                              [](const auto& nics) { return nics.has_value(); }),
                 "no network, no NICs");
    test::expect(report.pairs.size() == 10 && report.heap.empty(), "every pair once");
    const TransportVerdict& far = verdict(report, 0, 3, "shm");
    test::expect(far.chosen && far.capabilities == transport::capability::all_operations,
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
    for (int i = 0; i < 3; ++i)
      test::expect(detail::report_connectivity(world.state()).pairs.size() == 3, "three pairs");
  });
}

}  // namespace
}  // namespace shoal
