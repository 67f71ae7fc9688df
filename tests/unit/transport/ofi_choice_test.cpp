// SPDX-License-Identifier: Apache-2.0
// Which endpoints become rails, and how large windows are: pure functions of transport ofi.
#include <gtest/gtest.h>

#include "support/expect_error.hpp"
#include "transport/ofi/choice.hpp"
#include "transport/ofi/window.hpp"

namespace shoal::transport::ofi {
namespace {

using Names = std::vector<std::string>;

Candidate ip(const std::string& domain, bool v6 = false, bool link_local = false) {
  return {
      .domain = domain, .ip = true, .v6 = v6, .link_local = link_local, .loopback = domain == "lo"};
}

const std::vector<Candidate> kTcp = {
    ip("eth1", true, true), ip("eth0"), ip("eth0", true), ip("eth1"), ip("lo"), ip("lo", true)};

std::vector<std::size_t> rails(const std::vector<Candidate>& candidates, const Names& nics,
                               bool loopback = false) {
  return choose_rails(candidates, nics, loopback).rails;
}

using Rails = std::vector<std::size_t>;

TEST(OfiChoice, TakesOneRailForEachNicInItsOrder) {
  EXPECT_EQ(rails(kTcp, {"eth0", "eth1"}), (Rails{1, 3}));
  EXPECT_EQ(rails(kTcp, {"eth1", "eth0"}), (Rails{3, 1}));
  EXPECT_EQ(rails(kTcp, {"eth1", "eth1"}), (Rails{3}));
}

TEST(OfiChoice, PrefersAddressesThatOtherHostsReach) {
  EXPECT_EQ(rails({ip("eth1", true, true), ip("eth1", true)}, {"eth1"}), (Rails{1}));
  EXPECT_EQ(rails({ip("eth1", true, true)}, {"eth1"}), (Rails{0}))
      << "a link-local address is better than none";
}

TEST(OfiChoice, UsesLoopbackWhereAllPeersAreOnTheHost) {
  EXPECT_EQ(rails(kTcp, {"eth0", "eth1"}, true), (Rails{4}));
  EXPECT_EQ(rails({ip("eth0")}, {"eth0"}, true), (Rails{0})) << "there is no loopback address";
}

TEST(OfiChoice, TakesAnyEndpointWithoutNics) {
  EXPECT_EQ(rails(kTcp, {}), (Rails{1}));
  EXPECT_EQ(rails({ip("lo")}, {}), (Rails{0}));
  EXPECT_EQ(choose_rails({}, {}, false).reason, "it offers no endpoint");
}

TEST(OfiChoice, KnowsDevicesByPortAndBySuffix) {
  const std::vector<Candidate> rdma = {{.domain = "mlx5_0", .device = "mlx5_0"},
                                       {.domain = "mlx5_10", .device = "mlx5_10"},
                                       {.domain = "rdmap0s6-rdm", .device = ""}};
  EXPECT_EQ(rails(rdma, {"mlx5_10:1", "mlx5_0:1"}), (Rails{1, 0}));
  EXPECT_EQ(rails(rdma, {"rdmap0s6:1"}), (Rails{2}));
}

TEST(OfiChoice, NamesMissingAndAvailableNics) {
  const Choice choice = choose_rails(kTcp, {"mlx5_0:1", "eth7"}, false);
  EXPECT_TRUE(choice.rails.empty());
  test::expect_parts(choice.reason, {"mlx5_0:1, eth7", "eth1, eth0, lo"});
}

TEST(OfiChoice, TakesProvidersWithoutNics) {
  EXPECT_EQ(rails({{.domain = "shm"}}, {"eth0"}), (Rails{0}));
}

// All requests in flight to a receiver fit into its buffers.
TEST(OfiWindow, NeverOverrunsAReceiver) {
  EXPECT_EQ(window_of(2048, 1, 256, kSpareMessages), 256u);
  for (const std::size_t peers : {1, 2, 7, 100, 300})
    for (const std::size_t depth : {1, 16, 65'536}) {
      const std::size_t window = window_of(2048, peers, depth, kSpareMessages);
      EXPECT_GE(window, 1u);
      EXPECT_LE(window, depth);
      if (window > 1) EXPECT_LE(peers * (2 * window + kSpareMessages), 2048u) << peers << " peers";
    }
  EXPECT_EQ(window_of(2048, 5000, 256, kSpareMessages), 1u);
}

// The receive buffers for all peers stay below 9 MiB until messages have their shortest length.
TEST(OfiWindow, MessagesAreShorterWhereThereAreMorePeers) {
  constexpr std::size_t kDepth = 256, kBuffers = 2 * kDepth + kSpareMessages;
  EXPECT_EQ(payload_of(2), kLongestPayload);
  EXPECT_EQ(payload_of(16), 1024u);
  EXPECT_EQ(payload_of(10'000), kShortestPayload);
  for (std::size_t pes = 1; pes <= 100; ++pes) {
    const std::size_t payload = payload_of(pes);
    EXPECT_LE(payload, payload_of(pes - 1)) << pes;
    EXPECT_EQ(payload % 64, 0u) << pes;
    if (payload > kShortestPayload)
      EXPECT_LE(pes * kBuffers * payload, std::size_t{9} << 20) << pes;
  }
}

}  // namespace
}  // namespace shoal::transport::ofi
