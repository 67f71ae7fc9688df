// SPDX-License-Identifier: Apache-2.0
// Collectives among processes, on one node and on emulated nodes.
#include <gtest/gtest.h>

#include "checks/collective/reference.hpp"
#include "shoal/world.hpp"
#include "support/process/process.hpp"

namespace shoal {
namespace {

SHOAL_PE_BODY(random_collectives) {
  World world = World::open({pe.settings, nullptr});
  test::run_random_collectives(world, 60, 11);
  world.close();
}

void run(int n, const std::string& node_size) {
  test::expect_success(
      test::run_pes(n, "random_collectives",
                    {.env = {{"SHOAL_SYMMETRIC_SIZE", "32M"}, {"SHOAL_NODE_SIZE", node_size}}}));
}

TEST(CollectiveProcesses, FourOnOneNode) {
  run(4, "0");
}
TEST(CollectiveProcesses, FourOnTwoNodes) {
  run(4, "2");
}
TEST(CollectiveProcesses, EightOnFourNodes) {
  run(8, "2");
}

}  // namespace
}  // namespace shoal
