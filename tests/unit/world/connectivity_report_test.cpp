// SPDX-License-Identifier: Apache-2.0
// The connectivity report of shoal-info: for every pair of PEs the transport, and why none of the
// others.
#include "startup/connectivity_report.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace shoal {
namespace {

using detail::Connectivity;
using transport::Capabilities;
namespace capability = transport::capability;

constexpr Capabilities kAll = capability::all_operations;
constexpr std::array<std::string_view, 2> kNetworks = {"ofi", "ucx"};

/// Two nodes of two PEs: self, shm inside a node; ofi where `loaded`.
struct Case {
  Connectivity map;
  std::vector<std::vector<std::vector<std::string>>> reasons;

  explicit Case(bool loaded) {
    map.names = {"self", "shm"};
    if (loaded) map.names.emplace_back("ofi");
    map.inside = map.between = {"shm", "ofi", "ucx"};
    map.node_of = {0, 0, 1, 1};
    map.n_pes = 4;
    map.dropped.resize(map.names.size());
    for (Pe a = 0; a < 4; ++a) {
      auto& mine = reasons.emplace_back();
      for (Pe b = 0; b < 4; ++b) {
        const bool self = a == b, near = a / 2 == b / 2 && !self;
        map.map.push_back(self ? kAll | capability::load_store : 0);
        map.map.push_back(near ? kAll | capability::load_store : 0);
        mine.push_back({self ? "" : "another PE", self   ? "the PE itself"
                                                  : near ? ""
                                                         : "on another host"});
        if (!loaded) continue;
        map.map.push_back(self || near ? 0 : kAll);
        mine.back().emplace_back(self || near ? "not wanted" : "");
      }
    }
  }
  std::size_t at(Pe from, Pe to, std::size_t t) const {
    return (static_cast<std::size_t>(from) * 4 + static_cast<std::size_t>(to)) * map.names.size() +
           t;
  }
  std::vector<PairConnectivity> explain() const {
    return detail::explain(map, reasons, kNetworks, detail::chosen_for);
  }
};

TransportVerdict verdict(const std::vector<PairConnectivity>& report, Pe a, Pe b,
                         std::string_view transport) {
  for (const PairConnectivity& pair : report)
    for (const TransportVerdict& found : pair.transports)
      if (pair.a == a && pair.b == b && found.transport == transport) return found;
  ADD_FAILURE() << "no verdict on " << transport << " for " << a << ", " << b;
  return {};
}

TEST(ConnectivityReport, HasEveryPairAndEveryTransport) {
  const auto report = Case(true).explain();
  ASSERT_EQ(report.size(), 10u);
  for (const PairConnectivity& pair : report) {
    EXPECT_LE(pair.a, pair.b);
    EXPECT_EQ(pair.transports.size(), 4u);  // ucx was not loaded
    ASSERT_NE(pair.chosen(), nullptr);
    int chosen = 0;
    for (const TransportVerdict& found : pair.transports) {
      chosen += found.chosen;
      EXPECT_NE(found.why, "") << found.transport;
    }
    EXPECT_EQ(chosen, 1) << pair.a << " " << pair.b;
  }
}

TEST(ConnectivityReport, SaysWhyATransportIsTheOne) {
  const auto report = Case(true).explain();
  EXPECT_EQ(verdict(report, 0, 1, "shm").why,
            "the first of shm, ofi, ucx that does everything, both ways");
  EXPECT_TRUE(verdict(report, 0, 1, "shm").chosen);
  EXPECT_EQ(verdict(report, 1, 2, "ofi").capabilities, transport::describe(kAll));
  EXPECT_TRUE(verdict(report, 1, 2, "ofi").chosen);
  EXPECT_EQ(verdict(report, 3, 3, "self").why, "the PE itself");
}

TEST(ConnectivityReport, SaysWhyOthersAreNot) {
  Case made(true);
  EXPECT_EQ(verdict(made.explain(), 0, 2, "shm").why, "on another host");
  EXPECT_EQ(verdict(made.explain(), 0, 1, "ucx").why,
            "not loaded: shm comes first and does everything");
  EXPECT_EQ(verdict(made.explain(), 2, 2, "ucx").why,
            "not loaded: a PE needs no network to reach itself");
  // The two PEs of a pair give different reasons.
  made.reasons[2][0][1] = "in another namespace";
  EXPECT_EQ(verdict(made.explain(), 0, 2, "shm").why,
            "PE 0: on another host; PE 2: in another namespace");
  // A transport that lacks capabilities.
  made.map.map[made.at(0, 2, 1)] = made.map.map[made.at(2, 0, 1)] = capability::put;
  made.reasons[0][2][1] = made.reasons[2][0][1] = "no atomics here";
  EXPECT_EQ(verdict(made.explain(), 0, 2, "shm").why, "does only put: no atomics here");
  // A transport with all capabilities that comes later in the order.
  made.map.map[made.at(0, 1, 2)] = made.map.map[made.at(1, 0, 2)] = kAll;
  EXPECT_EQ(verdict(made.explain(), 0, 1, "ofi").why, "does everything, but shm comes first");
}

TEST(ConnectivityReport, NamesTheSettingThatLeavesOneOut) {
  Case made(true);
  made.map.between = {"ofi"};
  made.map.map[made.at(0, 2, 1)] = made.map.map[made.at(2, 0, 1)] = kAll;
  EXPECT_EQ(verdict(made.explain(), 0, 2, "shm").why, "excluded by SHOAL_TRANSPORT_BETWEEN");
  EXPECT_EQ(verdict(made.explain(), 0, 2, "ucx").why,
            "not loaded: excluded by SHOAL_TRANSPORT_BETWEEN");
  EXPECT_EQ(verdict(made.explain(), 0, 2, "ofi").why,
            "the only one that SHOAL_TRANSPORT_BETWEEN allows");
  made.map.inside = {"shm"};
  EXPECT_EQ(verdict(made.explain(), 0, 1, "ucx").why,
            "not loaded: excluded by SHOAL_TRANSPORT_INSIDE");
}

TEST(ConnectivityReport, SaysWhatWasDroppedForAll) {
  Case made(true);
  made.map.dropped[2] = "dropped for all, since between PE 0 and PE 2 it offers nothing";
  EXPECT_EQ(verdict(made.explain(), 1, 3, "ofi").why, made.map.dropped[2]);
  EXPECT_FALSE(verdict(made.explain(), 1, 3, "ofi").chosen);
}

}  // namespace
}  // namespace shoal
