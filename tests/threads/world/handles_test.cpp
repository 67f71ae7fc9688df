// SPDX-License-Identifier: Apache-2.0
// Handles of a world that is open, closed or failed, and memory that outlives it;
// objects that are created and destroyed repeatedly leave nothing behind.
#include <dirent.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

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

TEST(WorldOfThreads, ArraysOutliveTheWorld) {
  run_threads(2, world_settings(), [](World& world) {
    auto numbers = world.heap().allocate<int>(4);
    numbers[3] = 7 + world.my_pe();
    const Pe me = world.my_pe();
    world.close();
    EXPECT_EQ(numbers[3], 7 + me);
    expect_error(Code::closed, "SymmetricArray::free of 16 bytes", [&] { numbers.free(); });
    EXPECT_EQ(numbers.size(), 4u) << "a call that throws changes nothing";
    numbers = {};
    numbers.free();
  });
}

TEST(Ownership, DestroyedArraysReturnWithTheNextHeapCall) {
  run_threads(3, world_settings(), [](World& world) {
    const std::size_t used = world.heap().used();
    constexpr std::size_t kArrays = 40;  // more than two blocks of an exchange
    std::vector<SymmetricArray<int>> arrays;
    for (std::size_t i = 0; i < kArrays; ++i) arrays.push_back(world.heap().allocate<int>(100));
    const std::size_t all = world.heap().used();
    // Each PE destroys in another order, and PE 0 keeps the last one.
    if (world.my_pe() == 0) arrays.resize(kArrays - 1);
    SymmetricArray<int> kept;
    if (world.my_pe() != 0) {
      std::rotate(arrays.begin(), arrays.begin() + world.my_pe() * 7, arrays.end());
      arrays.clear();
    } else {
      kept = std::move(arrays[5]);
      while (!arrays.empty()) arrays.pop_back();
    }
    EXPECT_EQ(world.heap().used(), all) << "destructors do not release";
    world.heap().free(world.heap().malloc(8));
    EXPECT_EQ(world.heap().used() - used, (all - used) / kArrays) << "PE 0 keeps one";
    kept = {};
    world.heap().allocate<int>(1).free();
    EXPECT_EQ(world.heap().used(), used);
  });
}

TEST(Ownership, DestructorsWaitForNoPe) {
  run_threads(2, world_settings(), [](World& world) {
    const std::size_t used = world.heap().used();
    auto array = world.heap().allocate<int>(100);
    auto team = world.team().split_strided(0, 1, 2);
    std::atomic<int> gone = 0;
    // PE 1 is in no call of the world while PE 0 destroys, on another thread.
    static std::atomic<bool> destroyed;
    if (world.my_pe() == 0) {
      destroyed = false;
      barrier(world.team());
      std::thread([&, from = std::move(array), of = std::move(team)]() mutable {
        from = {};
        of = {};
        ++gone;
      }).join();
      EXPECT_EQ(gone, 1);
      destroyed = true;
      destroyed.notify_all();
    } else {
      barrier(world.team());
      destroyed.wait(false);
      try {
        const auto unwound = std::move(array);
        throw Error(Code::system, "on purpose");
      } catch (const Error&) {
      }
      team = {};
    }
    world.heap().free(world.heap().malloc(8));
    EXPECT_EQ(world.heap().used(), used);
    EXPECT_EQ(world.team().split_strided(0, 1, 2).index(), 6);
    EXPECT_EQ(world.team().split_strided(0, 1, 2).index(), 5);
  });
}

TEST(Ownership, AHeapThatIsFullReleasesDestroyedArraysFirst) {
  run_threads(2, world_settings(), [](World& world) {
    const std::size_t half = world.heap().largest_free() / 2 + 1;
    for (int i = 0; i < 5; ++i) {
      const auto array = world.heap().allocate<std::byte>(half);
      EXPECT_EQ(array.size(), half);
    }
    const auto held = world.heap().allocate<std::byte>(half);
    expect_error(Code::exhausted, "SHOAL_SYMMETRIC_SIZE",
                 [&] { world.heap().allocate<std::byte>(half); });
  });
}

TEST(Ownership, AnArrayFreedByAddressIsNotReleasedTwice) {
  run_threads(2, world_settings(), [](World& world) {
    const std::size_t used = world.heap().used();
    auto array = world.heap().allocate<int>(100);
    world.heap().free(array.data());
    auto next = world.heap().allocate<int>(100);
    EXPECT_EQ(next.data(), array.data()) << "the same place";
    const std::size_t held = world.heap().used();
    array = {};
    world.heap().free(world.heap().malloc(8));
    EXPECT_EQ(world.heap().used(), held);
    next.free();
    EXPECT_EQ(next.data(), nullptr);
    EXPECT_EQ(world.heap().used(), used);
  });
}

TEST(Ownership, DroppedTeamsReturnWithTheNextSplit) {
  Settings settings = world_settings();
  settings.max_teams = 48;
  run_threads(4, settings, [](World& world) {
    // Rows of two PEs: their names are equal in both rows. PE 3 keeps one of its teams.
    std::vector<Team> rows;
    for (int i = 0; i < 40; ++i) {
      const Pe first = world.my_pe() / 2 * 2;
      rows.push_back(world.team().split_strided(first, 1, 2));
      EXPECT_EQ(rows.back().index(), 5 + i);
      sync(rows.back());
    }
    const Team copy = rows[7];
    Team kept = world.my_pe() == 3 ? rows[3] : Team();
    if (world.my_pe() % 2 == 0) std::reverse(rows.begin(), rows.end());
    rows.clear();
    world.team().split_strided(0, 1, 4);  // names them
    // The copies hold row 7 on all PEs; one handle on PE 3 holds row 3 for PEs 2 and 3. The team of
    // that split had index 5, which returns with the next one.
    for (const std::int32_t index : {6, 5}) {
      const Pe first = world.my_pe() / 2 * 2;
      rows.push_back(world.team().split_strided(first, 1, 2));
      EXPECT_EQ(rows.back().index(), index);
    }
    rows.push_back(world.team().split_strided(world.my_pe() / 2 * 2, 1, 2));
    EXPECT_EQ(rows.back().index(), 7);
    rows.push_back(world.team().split_strided(world.my_pe() / 2 * 2, 1, 2));
    EXPECT_EQ(rows.back().index(), world.my_pe() < 2 ? 8 : 9) << "PE 3 keeps index 8";
    sync(copy);
  });
}

TEST(Ownership, ASplitThatNeedsASlotReleasesDroppedTeamsFirst) {
  Settings settings = world_settings();
  settings.max_teams = 8;
  run_threads(3, settings, [](World& world) {
    for (int i = 0; i < 20; ++i) {
      std::vector<Team> teams;
      while (teams.size() < 3) teams.push_back(world.team().split_strided(0, 1, 3));
      EXPECT_EQ(teams.back().index() < 8, true);
    }
    std::vector<Team> teams;
    while (teams.size() < 3) teams.push_back(world.team().split_strided(0, 1, 3));
    expect_error(Code::exhausted, "SHOAL_MAX_TEAMS", [&] { world.team().split_strided(0, 1, 3); });
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
