// SPDX-License-Identifier: Apache-2.0
// Nodes of a group derived from the connectivity map, and the transports that settings and map
// select.
// @traits one_thread
#include "ep/plan/nodes.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "support/expect_error.hpp"

namespace shoal::ep::detail {
namespace {

std::vector<Pe> pes(std::size_t count, Pe first = 10) {
  std::vector<Pe> result(count);
  std::iota(result.begin(), result.end(), first);
  return result;
}

TEST(EpNodes, RanksInBlocks) {
  const std::int32_t domains[] = {4, 4, 7, 7, 1, 1};
  const Nodes nodes = make_nodes(domains, pes(6), 3);
  EXPECT_EQ(nodes.count, 3);
  EXPECT_EQ(nodes.size, 2);
  EXPECT_EQ(nodes.mine, 1);
  EXPECT_EQ(nodes.rail, 1);
  EXPECT_EQ(nodes.node_of, (std::vector<std::int32_t>{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(nodes.rail_peer(0), 1);
  EXPECT_EQ(nodes.rail_peer(2), 5);
  EXPECT_TRUE(nodes.here(2));
  EXPECT_FALSE(nodes.here(4));
}

// As srun --distribution=cyclic numbers them.
TEST(EpNodes, RanksInTurn) {
  const std::int32_t domains[] = {0, 1, 2, 0, 1, 2};
  const Nodes nodes = make_nodes(domains, pes(6), 4);
  EXPECT_EQ(nodes.mine, 1);
  EXPECT_EQ(nodes.rail, 1);
  EXPECT_EQ(nodes.rail_peer(0), 3);
  EXPECT_EQ(nodes.rail_peer(2), 5);
}

TEST(EpNodes, NumbersRanksOfOtherNodes) {
  const std::int32_t domains[] = {0, 1, 0, 1, 2, 2};
  const Nodes nodes = make_nodes(domains, pes(6), 0);
  for (std::int32_t owner = 0; owner < 6; ++owner) {
    std::int32_t expected = 0;
    for (std::int32_t other = 0; other < 6; ++other)
      if (nodes.node_of[other] != nodes.node_of[owner]) {
        EXPECT_EQ(nodes.remote_index(owner, other), expected++) << owner << " " << other;
      }
    EXPECT_EQ(expected, 4);
  }
}

TEST(EpNodes, UnequalNodesAreAnError) {
  const std::int32_t domains[] = {0, 0, 0, 1, 1};
  test::expect_error(Code::unsupported, "3 share memory with PE 10, 2 with PE 13",
                     [&] { make_nodes(domains, pes(5), 0); });
}

}  // namespace
}  // namespace shoal::ep::detail
