// SPDX-License-Identifier: Apache-2.0
// The C ABI in a child that a PE forks: every call answers SHOAL_CLOSED, and the child exits
// without a message and without an effect on the world.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "support/capi/capi_ep.hpp"
#include "support/process/process.hpp"

namespace shoal::test {
namespace {

bool refused(shoal_status status) {
  const std::string text = shoal_last_error();
  if (status == SHOAL_CLOSED && text.find("is a fork of PE") != std::string::npos) return true;
  std::fprintf(stderr, "child: %s: %s\n", shoal_status_name(status), text.c_str());
  return false;
}

SHOAL_PE_BODY(fork_child) {
  EpCase c = small_case();
  c.ranks = 2;
  c.experts = 6;
  shoal_world* world = nullptr;
  ok(shoal_world_open(nullptr, &world));
  {
    GroupRank rank(c, world, c_options(c));
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      shoal_team* team = nullptr;
      shoal_ep_routing routing = SHOAL_EP_ROUTING_INIT;
      const bool good =
          refused(shoal_world_team(world, SHOAL_TEAM_WORLD, &team)) &&
          refused(shoal_barrier(rank.team)) &&
          refused(shoal_ep_route(rank.group, &rank.topk_idx, nullptr, &routing)) &&
          refused(shoal_ep_group_close(rank.group)) && refused(shoal_world_close(world)) &&
          shoal_ep_group_destroy(rank.group) == SHOAL_OK &&
          shoal_team_destroy(rank.team) == SHOAL_OK && shoal_world_destroy(world) == SHOAL_OK;
      std::exit(good ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    ok(shoal_barrier(rank.team));
    ok(shoal_ep_group_close(rank.group));
  }
  ok(shoal_world_close(world));
  ok(shoal_world_destroy(world));
}

TEST(CApiProcesses, IsClosedInForkedChildren) {
  const auto results = run_pes(2, "fork_child");
  expect_success(results);
  for (const ProcessResult& result : results) EXPECT_EQ(result.err, "");
}

}  // namespace
}  // namespace shoal::test
