// SPDX-License-Identifier: Apache-2.0
// What handles tell about a world that is open, closed or failed, and memory that outlives it.
#include <gtest/gtest.h>

#include <string>

#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"

namespace shoal::test {
namespace {

TEST(WorldOfThreads, HandlesKnowTheirWorld) {
  EXPECT_FALSE(Team().is_open());
  EXPECT_THROW(Team().world(), Error);
  run_threads(2, world_settings(), [](World& world) {
    const Team team = world.team();
    EXPECT_TRUE(team.is_open());
    EXPECT_EQ(team.world().my_pe(), world.my_pe());
    EXPECT_EQ(team.world().heap().base(), world.heap().base());
    EXPECT_EQ(world.heap().device(), Device{}) << "the host";
    Team split = team.split_strided(0, 1, 2);
    const Team copy = split;
    split.destroy();
    EXPECT_FALSE(copy.is_open());
    world.close();
    EXPECT_FALSE(team.is_open());
    EXPECT_THROW(team.world(), Error);
  });
}

TEST(WorldOfThreads, MemoryOutlivesTheWorldWhileItIsOwned) {
  run_threads(2, world_settings(), [](World& world) {
    auto* const numbers = static_cast<int*>(world.heap().calloc(4, sizeof(int)));
    numbers[3] = 7 + world.my_pe();
    const Pe me = world.my_pe();
    const std::shared_ptr<void> owner = world.heap().memory_owner();
    world.close();
    EXPECT_EQ(numbers[3], 7 + me);
  });
}

TEST(WorldOfThreads, AbortEndsTheWaitsOfOthers) {
  std::string seen;
  try {
    run_threads(2, world_settings(), [&](World& world) {
      auto flag = world.heap().allocate<std::uint64_t>(1);
      if (world.my_pe() == 0) {
        world.abort("the disk is full");
        throw Error(Code::system, "the disk is full");
      }
      try {
        world.signal_wait_until(flag.data(), Compare::equal, 1);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::peer_failed);
        seen = error.what();
        throw;
      }
    });
    FAIL() << "a PE has failed";
  } catch (const Error&) {
  }
  EXPECT_NE(seen.find("PE 0: the disk is full"), std::string::npos) << seen;
}

}  // namespace
}  // namespace shoal::test
