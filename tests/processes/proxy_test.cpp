// SPDX-License-Identifier: Apache-2.0
// The proxy in worlds of processes: a killed PE fails the ring, and every waiter learns it.
// @traits polls
#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "shoal/collective.hpp"
#include "support/expect_error.hpp"
#include "support/process/process.hpp"
#include "support/proxy/world_proxy.hpp"
#include "support/world/neighbours.hpp"
#include "support/world/ofi.hpp"
#include "support/world/verbs.hpp"

namespace shoal::test {
namespace {

// PE 1 ends in the middle of the requests of PE 0. All 3 producers of PE 0 learn it before the
// deadline of the world.
SHOAL_PE_BODY(proxy_killed_peer) {
  World world = World::open({pe.settings, nullptr});
  auto words = world.heap().allocate<std::uint64_t>(8);
  WorldProxy proxy(world, 8);
  barrier(world.team());
  if (world.my_pe() == 1) {
    world.wait_until(&words[3], Compare::greater_equal, std::uint64_t{20});
    raise(SIGKILL);
  }
  std::vector<Outcome> outcomes(3, Outcome::ok);
  std::vector<std::thread> producers;
  for (std::size_t p = 0; p < outcomes.size(); ++p)
    producers.emplace_back([&, p] {
      while (outcomes[p] == Outcome::ok) outcomes[p] = proxy.run(proxy.add(&words[3], 1, 1));
    });
  for (std::thread& producer : producers) producer.join();
  for (const Outcome outcome : outcomes) EXPECT_EQ(outcome, Outcome::failed);
  EXPECT_EQ(proxy.quiet(), Outcome::failed);
  const device::proxy::Control& control = *proxy.ring().control;
  EXPECT_EQ(control.pe, 1);
  EXPECT_EQ(control.kind, Kind::atomic);
  EXPECT_EQ(control.code, static_cast<std::int32_t>(Code::peer_failed));
  const auto failure = proxy.proxy().failure();
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->code(), Code::peer_failed);
  expect_parts(failure->what(), {"proxy of PE 0", "atomic of 8 bytes on PE 1"});
}

void expect_report(const Environment& environment) {
  const auto results = run_pes(2, "proxy_killed_peer", {.env = environment});
  EXPECT_TRUE(results[0].ok()) << results[0].describe();
  EXPECT_EQ(results[1].signal, SIGKILL) << results[1].describe();
}

Environment environment(const std::string& transport) {
  return {{"SHOAL_SYMMETRIC_SIZE", "4M"},
          {"SHOAL_TIMEOUT_MS", kNever},
          {"SHOAL_TRANSPORT_INSIDE", transport},
          {"SHOAL_TRANSPORT_BETWEEN", transport},
          {"SHOAL_OFI_PROVIDER", "tcp;ofi_rxm"}};
}

TEST(ProxyProcesses, ReportAKilledPeerOverSharedMemory) {
  Environment chosen = environment("shm");
  chosen.erase("SHOAL_TRANSPORT_BETWEEN");
  expect_report(chosen);
}

TEST(ProxyProcesses, ReportAKilledPeerOverOfi) {
  SHOAL_SKIP_WITHOUT_OFI();
  expect_report(environment("ofi"));
}

using VerbsProxyProcesses = WithVerbs;

TEST_F(VerbsProxyProcesses, ReportAKilledPeer) {
  expect_report(verbs_environment(kNever));
}

}  // namespace
}  // namespace shoal::test
