// SPDX-License-Identifier: Apache-2.0
// A signal has the effect that the program chose, even if a transport loads libraries with signal
// handlers.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <iostream>

#include "shoal/collective.hpp"
#include "shoal/world.hpp"
#include "support/process/process.hpp"
#include "support/world/ofi.hpp"
#include "support/world/ucx.hpp"
#include "support/world/verbs.hpp"

namespace shoal::test {
namespace {

void handler(int) {}

/// Argument "own": the PE has handlers of its own before it opens the world.
SHOAL_PE_BODY(wait_for_a_signal) {
  const bool own = pe.argument == "own";
  if (own) signal(SIGTERM, handler);
  const World world = World::open({pe.settings, nullptr});
  barrier(world.team());
  if (own) {
    struct sigaction now{};
    ASSERT_EQ(sigaction(SIGTERM, nullptr, &now), 0);
    EXPECT_EQ(now.sa_handler, handler);
    return;
  }
  std::cout << "ready" << std::endl;
  for (;;) pause();
}

Environment with(const std::string& transport) {
  return {{"SHOAL_SYMMETRIC_SIZE", "4M"},
          {"SHOAL_TRANSPORT_INSIDE", transport},
          {"SHOAL_TRANSPORT_BETWEEN", transport},
          {"SHOAL_OFI_PROVIDER", "tcp;ofi_rxm"},
          {"SHOAL_UCX_TLS", "tcp"}};
}

void expect_death_by_signal(const std::string& transport, const Environment& chosen) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    PeGroup group = start_pes(2, "wait_for_a_signal", {.env = chosen});
    for (Process& process : group.pes)
      ASSERT_TRUE(process.wait_for_output("ready")) << process.err();
    for (Process& process : group.pes) process.send(signal);
    for (const ProcessResult& result : wait_all(group.pes))
      EXPECT_EQ(result.signal, signal) << transport << ": " << result.describe();
  }
  expect_success(run_pes(2, "wait_for_a_signal", {.env = chosen, .argument = "own"}));
}

TEST(Signals, EndAPeThatUsesLibfabric) {
  SHOAL_SKIP_WITHOUT_OFI();
  expect_death_by_signal("ofi", with("ofi"));
}

using SignalsWithUcx = WithUcx;
TEST_F(SignalsWithUcx, EndAPe) {
  expect_death_by_signal("ucx", with("ucx"));
}

using SignalsWithVerbs = WithVerbs;
TEST_F(SignalsWithVerbs, EndAPe) {
  expect_death_by_signal("verbs", verbs_environment("20000"));
}

}  // namespace
}  // namespace shoal::test
