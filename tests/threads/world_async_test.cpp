// Worlds that open in the background (requirement B6).

#include <gtest/gtest.h>

#include <thread>

#include "shoal/collective.hpp"
#include "support/expect_error.hpp"
#include "support/worlds.hpp"

namespace shoal::test {
namespace {

TEST(WorldInTheBackground, BelongsToWhoTakesIt) {
  constexpr Pe kPes = 3;
  auto bootstraps = thread_bootstraps(kPes, world_settings());
  // One thread starts them all: none of them waits for the others here.
  std::vector<std::future<World>> opening;
  for (auto& bootstrap : bootstraps)
    opening.push_back(World::open_async({world_settings(), std::shared_ptr<Bootstrap>(std::move(bootstrap))}));
  std::vector<std::thread> threads;
  for (Pe pe = 0; pe < kPes; ++pe)
    threads.emplace_back([&, pe] {
      World world = opening[static_cast<std::size_t>(pe)].get();
      EXPECT_EQ(world.my_pe(), pe);
      check_rma(world);
      world.close();
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(WorldInTheBackground, ThrowsWhatOpenThrows) {
  auto bootstraps = thread_bootstraps(1, world_settings());
  Settings settings = world_settings();
  settings.max_teams = 1;
  auto opening = World::open_async({settings, std::shared_ptr<Bootstrap>(std::move(bootstraps[0]))});
  expect_error(Code::invalid_argument, "SHOAL_MAX_TEAMS", [&] { opening.get(); });
}

}  // namespace
}  // namespace shoal::test
