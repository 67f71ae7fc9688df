// SPDX-License-Identifier: Apache-2.0
// Opening, closing and failing of worlds whose PEs are threads.

#include <dirent.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <mutex>
#include <thread>

#include "checks/world/operations.hpp"
#include "checks/world/waits.hpp"
#include "support/world/world_errors.hpp"
#include "team/exchange.hpp"
#include "world/state.hpp"

namespace shoal::test {
namespace {

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* const directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

std::size_t heap_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("shoal-heap") != std::string::npos ? 1 : 0;
  return count;
}

// Beyond 32 PEs, sync and exchange take rounds instead of one hop.
TEST(WorldOfManyThreads, ExchangesInRounds) {
  Settings settings = world_settings();
  settings.max_teams = 8;
  run_threads(37, settings, [](World& world) {
    check_exchange(world);
    check_rma(world);
  });
}

TEST(World, OfOnePe) {
  Settings settings = world_settings();
  settings.bootstrap = "single";
  World world = World::open({settings, nullptr});
  check_identity(world);
  check_rma(world);
  check_exchange(world);
  EXPECT_EQ(world.n_pes(), 1);
  world.close();
  EXPECT_FALSE(world.is_open());
}

TEST(World, ArraysMayOutliveIt) {
  run_threads(2, world_settings(), [](World& world) {
    const World copy = world;
    const auto array = world.heap().allocate<int>(4);
    world.close();
    world.close();
    EXPECT_FALSE(copy.is_open());
  });  // `array` is released after its world: that must do nothing
}

TEST(World, TimesThePhasesOfItsStart) {
  const auto errors = errors_of(2, world_settings(), [](Pe, auto bootstrap) {
    const auto start = std::chrono::steady_clock::now();
    World world = World::open({world_settings(), bootstrap});
    const auto took = std::chrono::steady_clock::now() - start;
    std::chrono::nanoseconds sum{};
    for (const InitPhase& phase : world.init_phases()) sum += phase.duration;
    EXPECT_GT(sum.count(), 0);
    EXPECT_LE(sum, took);
    world.close();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Worlds are objects.
TEST(World, SeveralAtOnceInOneProcess) {
  std::vector<std::thread> worlds;
  for (int i = 0; i < 3; ++i)
    worlds.emplace_back(
        [] { run_threads(3, world_settings(), [](World& world) { check_signals(world); }); });
  for (std::thread& world : worlds) world.join();
}

TEST(World, LeaksNothing) {
  const auto cycle = [] {
    run_threads(3, world_settings(), [](World& world) {
      const auto array = world.heap().allocate<int>(100);
      const Team team = world.team().split_strided(0, 1, 2);
      check_rma(world);
    });
  };
  cycle();
  const std::size_t descriptors = open_descriptors();
  EXPECT_EQ(heap_mappings(), 0u);
  for (int i = 0; i < 50; ++i) cycle();
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(heap_mappings(), 0u);
}

// destroy returns the resources of a team.
TEST(World, TeamsComeBack) {
  run_threads(3, world_settings(), [](World& world) {
    std::int32_t index = -1;
    for (int i = 0; i < 500; ++i) {
      Team team = world.team().split_strided(0, 1, 2 + i % 2);
      if (team.valid()) {
        EXPECT_TRUE(index < 0 || team.index() == index);
        index = team.index();
        detail::sync(state_of(team), "test");
        team.free();
      }
    }
  });
}

// The set of free indices is larger than one exchange.
TEST(World, HasAsManyTeamsAsItIsTold) {
  Settings settings = world_settings();
  settings.max_teams = 2100;
  run_threads(2, settings, [](World& world) {
    std::vector<Team> teams;
    for (int i = 5; i < 2100; ++i) {
      teams.push_back(world.team().split_strided(0, 1, 2));
      EXPECT_EQ(teams.back().index(), i);
    }
    EXPECT_THROW(world.team().split_strided(0, 1, 2), Error);
    EXPECT_THROW(world.make_team(7, 2, world.my_pe()), Error);
    for (Team& team : teams) team.free();
  });
}

TEST(World, TouchesNoPageBeforeUse) {
  Settings settings = world_settings();
  settings.symmetric_size = std::size_t{64} << 30;  // more than the machine has
  run_threads(4, settings, [](World& world) {
    const auto array = world.heap().allocate<char>(std::size_t{32} << 30);
    EXPECT_EQ(array[array.size() - 1], 0);
  });
}

// All PEs report the failure of one PE, with that PE's message.
TEST(WorldOpen, OneBadSettingFailsAll) {
  const auto errors = errors_of(3, world_settings(), [](Pe pe, auto bootstrap) {
    Settings settings = world_settings();
    if (pe == 1) settings.spin = -5;
    World::open({settings, bootstrap});
  });
  for (std::size_t pe = 0; pe < errors.size(); ++pe) {
    EXPECT_TRUE(contains(errors[pe], "PE 1 failed in phase settings: SHOAL_SPIN is \"-5\""))
        << errors[pe];
    EXPECT_TRUE(errors[pe].starts_with(pe == 1 ? "invalid_argument" : "peer_failed")) << errors[pe];
  }
}

TEST(WorldOpen, OneWithoutMemoryFailsAll) {
  Settings common = world_settings();
  common.symmetric_size = std::size_t{1}
                          << 46;  // five of them are more than an address space holds
  const auto errors =
      errors_of(5, common, [&](Pe, auto bootstrap) { World::open({common, bootstrap}); });
  for (const std::string& error : errors) {
    EXPECT_TRUE(contains(error, "failed in phase heap: cannot reserve")) << error;
    EXPECT_TRUE(contains(error, "SHOAL_SYMMETRIC_SIZE")) << error;
  }
  EXPECT_EQ(heap_mappings(), 0u);
}

// Settings that must be equal are compared, and the message names them.
TEST(WorldOpen, ComparesWhatMustBeEqual) {
  const struct {
    void (*change)(Settings&);
    const char* text;
  } cases[] = {
      {[](Settings& settings) { settings.symmetric_size *= 2; },
       "SHOAL_SYMMETRIC_SIZE, which must be the same on all: PE 0, 2: 8388608; PE 1: 16777216"},
      {[](Settings& settings) { settings.max_teams = 99; },
       "SHOAL_MAX_TEAMS, which must be the same on all: PE 0, 2: 512; PE 1: 99"},
      {[](Settings& settings) { settings.node_size = 1; },
       "SHOAL_NODE_SIZE, which must be the same on all: PE 0, 2: 0; PE 1: 1"},
      {[](Settings& settings) { settings.transport_inside = "ofi"; },
       "SHOAL_TRANSPORT_INSIDE, which must be the same on all: PE 0, 2: automatic; PE 1: ofi"},
      {[](Settings& settings) { settings.transport_between = "ucx,ofi"; },
       "SHOAL_TRANSPORT_BETWEEN, which must be the same on all: PE 0, 2: automatic; PE 1: ucx,ofi"},
      {[](Settings& settings) { settings.staging_size *= 2; },
       "SHOAL_STAGING_SIZE, which must be the same on all: PE 0, 2: 4294967296; PE 1: 8589934592"},
      {[](Settings& settings) { settings.staged_chunk = 8192; },
       "SHOAL_STAGED_CHUNK, which must be the same on all: PE 0, 2: 524288; PE 1: 8192"},
      {[](Settings& settings) { settings.staged_depth = 9; },
       "SHOAL_STAGED_DEPTH, which must be the same on all: PE 0, 2: 8; PE 1: 9"},
      {[](Settings& settings) { settings.ep_chunk = 8192; },
       "SHOAL_EP_CHUNK, which must be the same on all: PE 0, 2: 524288; PE 1: 8192"},
      {[](Settings& settings) { settings.ep_depth = 1; },
       "SHOAL_EP_DEPTH, which must be the same on all: PE 0, 2: 0; PE 1: 1"},
      {[](Settings& settings) { settings.ep_between_nodes = "staged"; },
       "SHOAL_EP_BETWEEN_NODES, which must be the same on all: PE 0, 2: automatic; PE 1: staged"},
  };
  for (const auto& [change, text] : cases) {
    const auto errors = errors_of(3, world_settings(), [change = change](Pe pe, auto bootstrap) {
      Settings settings = world_settings();
      if (pe == 1) change(settings);
      World::open({settings, bootstrap});
    });
    for (const std::string& error : errors) {
      EXPECT_TRUE(error.starts_with("mismatch")) << error;
      EXPECT_TRUE(contains(error, text)) << error;
    }
  }
}

TEST(WorldOpen, RefusesUnequalHosts) {
  const auto errors = errors_of(3, world_settings(), [](Pe pe, auto bootstrap) {
    Settings settings = world_settings();
    settings.host_id = pe == 2 ? "b" : "a";
    World::open({settings, bootstrap});
  });
  for (const std::string& error : errors)
    EXPECT_TRUE(contains(error, "every host must have the same number")) << error;
}

// The start names a pair that no transport connects, with the reason of every transport.
TEST(WorldOpen, NamesThePairThatNothingConnects) {
  const auto errors = errors_of(2, world_settings(), [](Pe pe, auto bootstrap) {
    Settings settings = world_settings();
    settings.host_id = pe == 1 ? "b" : "a";
    settings.transport_between = "shm";  // no network is tried
    World::open({settings, bootstrap});
  });
  EXPECT_TRUE(contains(
      errors[0],
      "no transport connects PE 0 and PE 1: self offers nothing (another PE); shm offers nothing (on another host)"))
      << errors[0];
  for (const std::string& error : errors) EXPECT_TRUE(error.starts_with("unsupported")) << error;
}

TEST(RunThreads, RethrowsTheCause) {
  std::atomic<int> others = 0;
  try {
    run_threads(4, world_settings(), [&](World& world) {
      if (world.my_pe() == 2) throw std::runtime_error("out of tokens");
      try {
        detail::sync(state_of(world.team()), "test");
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::peer_failed);
        EXPECT_TRUE(contains(error.what(), "PE 2: out of tokens")) << error.what();
        ++others;
        throw;
      }
    });
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "out of tokens");
  }
  EXPECT_EQ(others, 3);
}

// A call with a wrong argument fails for its caller alone.
TEST(RunThreads, OneBadArgumentPoisonsNothing) {
  run_threads(3, world_settings(), [](World& world) {
    if (world.my_pe() == 1) EXPECT_THROW(world.put_value(RemoteSpan<int>{{99, 0}, 1}, 1), Error);
    detail::sync(state_of(world.team()), "test");
    check_rma(world);
  });
}

TEST(WorldWait, TimesOutAndSaysForWhat) {
  Settings settings = world_settings();
  settings.timeout = std::chrono::milliseconds(100);
  settings.spin = 10;
  std::atomic<bool> waited = false;
  const auto errors = errors_of(2, settings, [&](Pe pe, auto bootstrap) {
    World world = World::open({settings, bootstrap});
    if (pe == 1) {
      state_of(world).progress().set(detail::Activity::combine, 1840, "send");
      while (!waited) std::this_thread::yield();
      return;
    }
    const struct Done {
      std::atomic<bool>& flag;
      ~Done() { flag = true; }
    } done{waited};
    detail::sync(state_of(world.team()), "barrier");
  });
  EXPECT_TRUE(errors[0].starts_with("timeout")) << errors[0];
  EXPECT_TRUE(contains(
      errors[0],
      "barrier (operation 1 of team 0) timed out after 100 ms on PE 0 of 2: waiting for PE 1, expected "
      "operation 1, seen 0; PE 1 last reported combine 1840, phase send; Setting: SHOAL_TIMEOUT_MS."))
      << errors[0];
  EXPECT_EQ(errors[1], "");
}

TEST(WorldWait, HearsOfThoseWhoLeft) {
  const auto errors = errors_of(2, world_settings(), [](Pe pe, auto bootstrap) {
    World world = World::open({world_settings(), bootstrap});
    if (pe == 1) return;  // without close
    detail::sync(state_of(world.self_team()), "self");
    world.wait_until(reinterpret_cast<std::uint64_t*>(world.heap().base()), Compare::equal, 1);
  });
  EXPECT_TRUE(errors[0].starts_with("peer_failed")) << errors[0];
  EXPECT_TRUE(contains(errors[0], "PE 1: left the world without closing it")) << errors[0];
  EXPECT_EQ(errors[1], "");
}

// A PE that left fails only the waits for it.
TEST(WorldWait, GoesOnAmongThoseWhoStay) {
  std::atomic<bool> gone = false;
  const auto errors = errors_of(3, world_settings(), [&](Pe pe, auto bootstrap) {
    World world = World::open({world_settings(), bootstrap});
    Team two = world.team().split_strided(0, 2, 2);
    if (pe == 1) {
      world = World();
      gone = true;
      return;
    }
    while (!gone) std::this_thread::yield();
    if (pe == 2) await_block(wait_point_of(world, 0));
    detail::sync(state_of(two), "two");
    EXPECT_TRUE(state_of(world).health().has_failed(1));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace shoal::test
