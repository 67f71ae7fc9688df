// SPDX-License-Identifier: Apache-2.0
// Handles of a world that is open, closed or failed, and memory that outlives it;
// objects that are created and destroyed repeatedly leave nothing behind.
#include <dirent.h>
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <string>

#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"

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
    split.free();
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
  expect_parts(seen, {"PE 0: the disk is full"});
}

/// The resources of a world that a process holds.
struct Held {
  std::size_t descriptors = 0, heaps = 0, threads = 0;
  friend bool operator==(const Held&, const Held&) = default;
};

std::ostream& operator<<(std::ostream& out, const Held& held) {
  return out << held.descriptors << " descriptors, " << held.heaps << " mappings of heaps, "
             << held.threads << " threads";
}

std::size_t entries_of(const char* path) {
  std::size_t count = 0;
  DIR* const directory = opendir(path);
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

Held held_now() {
  Held held{entries_of("/proc/self/fd"), 0, entries_of("/proc/self/task")};
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    held.heaps += line.find("shoal-heap") != std::string::npos ? 1 : 0;
  return held;
}

/// Like held_now, which opens files: only PE 0 calls it. Collective.
std::optional<Held> held_by_process(const World& world) {
  barrier(world.team());
  std::optional<Held> held;
  if (world.my_pe() == 0) held = held_now();
  barrier(world.team());
  return held;
}

/// Runs `cycle` once, then `times` times more, and compares the resources of this PE and its
/// process.
template <typename Cycle>
void expect_nothing_kept(World& world, int times, Cycle&& cycle) {
  cycle();
  const std::size_t used = world.heap().used();
  const auto before = held_by_process(world);
  for (int i = 0; i < times; ++i) cycle();
  EXPECT_EQ(world.heap().used(), used);
  EXPECT_EQ(held_by_process(world), before);
}

TEST(Cycles, SplitsKeepNothing) {
  run_threads(4, world_settings(), [](World& world) {
    expect_nothing_kept(world, 300, [&] {
      auto [row, column] = world.team().split_2d(2);
      EXPECT_EQ(row.index(), 5);
      EXPECT_EQ(column.index(), 6);
      sync(row);
      column.free();
      row.free();
    });
  });
}

TEST(Cycles, TeamsMadeByIdKeepNothing) {
  run_threads(3, world_settings(), [](World& world) {
    // The slots are reused only on the PEs of the team: PE 2 makes no team with the others.
    constexpr std::uint64_t kId = 0x5eed;
    expect_nothing_kept(world, 300, [&] {
      if (world.my_pe() == 2) return;
      Team team = world.make_team(kId, 2, 1 - world.my_pe());
      EXPECT_EQ(team.index(), 5);
      sync(team);
      team.free();
    });
  });
}

TEST(Cycles, ArraysKeepNothing) {
  run_threads(3, world_settings(), [](World& world) {
    expect_nothing_kept(world, 300, [&] {
      auto array = world.heap().allocate<int>(100);
      array = world.heap().allocate<int>(50'000);
    });
  });
}

TEST(Cycles, WorldsKeepNothing) {
  const auto cycle = [] {
    run_threads(2, world_settings(), [](World& world) {
      const auto word = world.heap().allocate<std::int64_t>(1);
      world.atomic_fetch_add(word.on(0), 1);
      barrier(world.team());
      EXPECT_EQ(world.atomic_fetch(word.on(0)), 2);
      barrier(world.team());
    });
  };
  cycle();
  const Held before = held_now();
  EXPECT_EQ(before.heaps, 0u);
  for (int i = 0; i < 200; ++i) cycle();
  EXPECT_EQ(held_now(), before);
}

}  // namespace
}  // namespace shoal::test
