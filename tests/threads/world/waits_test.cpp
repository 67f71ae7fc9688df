// SPDX-License-Identifier: Apache-2.0
// Waits that block: what wakes them, what ends them, with a core per PE and with fewer.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "checks/world/operations.hpp"
#include "checks/world/waits.hpp"
#include "pe/memory.hpp"
#include "shoal/collective.hpp"
#include "support/world/one_core.hpp"
#include "support/world/world_errors.hpp"
#include "team/teams.hpp"
#include "world/state.hpp"

namespace shoal::test {
namespace {

TEST(Waits, WritesWakeAPe) {
  run_threads(2, world_settings(), [](World& world) { check_writes_wake(world); });
}

// The transports' operations wake PEs that loads and stores do not reach.
TEST(Waits, WritesWakeAPeOfAnotherNode) {
  Settings settings = world_settings();
  settings.node_size = 1;
  std::atomic<const WaitPoint*> of_pe_1 = nullptr;
  run_threads(2, settings, [&](World& world) {
    if (world.my_pe() == 1) of_pe_1 = &state_of(world).waits().wait_point();
    barrier(world.team());
    check_writes_wake(world, of_pe_1);
    barrier(world.team());
  });
}

TEST(Waits, StoresThroughPointersAreSeen) {
  run_threads(2, world_settings(), check_stores_are_seen);
}

TEST(Waits, AFullCoreTurnsSpinningOff) {
  const auto errors = run_on_one_core(
      2,
      [](World& world) {
        EXPECT_TRUE(state_of(world).waits().crowded());
        check_writes_wake(world);
        check_stores_are_seen(world);
      },
      world_settings());
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// Barriers and exchanges; each PE puts a word to all others before each barrier.
void check_meetings(World& world) {
  const auto words = world.heap().allocate<std::uint64_t>(static_cast<std::size_t>(world.n_pes()));
  const auto me = static_cast<std::size_t>(world.my_pe());
  for (std::uint64_t i = 1; i <= 20; ++i) {
    for (Pe pe = 0; pe < world.n_pes(); ++pe) world.signal_set(words.on(pe).subspan(me, 1), i);
    barrier(world.team());
    for (std::size_t pe = 0; pe < words.size(); ++pe)
      ASSERT_GE(std::atomic_ref(words[pe]).load(), i) << pe;
  }
  for (int i = 0; i < 5; ++i) {
    const auto mine = static_cast<std::byte>(world.my_pe() + i);
    const auto all = exchange_bytes(world.team(), std::span(&mine, 1));
    for (std::size_t pe = 0; pe < all.size(); ++pe)
      ASSERT_EQ(all[pe], static_cast<std::byte>(pe + static_cast<std::size_t>(i)));
  }
}

// Collectives of PEs that share a core. With 40 and 70, waits block, and each must be woken. A PE
// that always comes last finds everything ready and does not block: only their sum is certain.
TEST(Waits, ManyPesMeetOnOneCore) {
  for (const Pe pes : {5, 9, 40, 70}) {
    std::atomic<std::uint64_t> blocks = 0;
    const auto errors = run_on_one_core(
        pes,
        [pes, &blocks](World& world) {
          EXPECT_EQ(state_of(world).teams().world_team().meeting,
                    pes == 5 ? detail::Meeting::at_all : detail::Meeting::at_first);
          check_meetings(world);
          blocks += state_of(world).waits().wait_point().blocks();
        },
        world_settings());
    if (pes >= 40) EXPECT_GT(blocks.load(), 0u) << pes;
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

// Teams of several nodes take rounds, those of one node do not.
TEST(Waits, ManyPesOfTwoNodesMeetInRounds) {
  Settings settings = world_settings();
  settings.node_size = 20;
  const auto errors = run_on_one_core(
      40,
      [](World& world) {
        EXPECT_EQ(state_of(world).teams().world_team().meeting, detail::Meeting::in_rounds);
        check_meetings(world);
      },
      settings);
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Another program on the core turns each yield into a time slice: the PEs stop yielding.
TEST(Waits, PesNextToAnotherProgramBlock) {
  std::atomic<bool> done = false;
  std::thread other([&] {
    use_one_core();
    while (!done.load(std::memory_order_relaxed)) continue;
  });
  const auto check = [](World& world) {
    EXPECT_EQ(state_of(world).waits().crowded(), true);
    const auto all_yield = [&] {
      const auto mine = static_cast<std::byte>(state_of(world).waits().yields() ? 1 : 0);
      const auto all = exchange_bytes(world.team(), std::span(&mine, 1));
      return std::ranges::all_of(all, [](std::byte yields) { return yields == std::byte{1}; });
    };
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    bool yielding = true;
    while (yielding && std::chrono::steady_clock::now() < end) yielding = all_yield();
    EXPECT_FALSE(yielding);
  };
  const auto errors = run_on_one_core(2, check, world_settings());
  done = true;
  other.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(Waits, ABlockEndsAtTheDeadline) {
  Settings settings = world_settings();
  settings.timeout = std::chrono::milliseconds(200);
  const auto errors = errors_of(2, settings, [&](Pe pe, auto bootstrap) {
    World world = World::open({settings, bootstrap});
    const auto flag = world.heap().allocate<std::uint64_t>(1);
    if (pe == 1) {
      try {
        world.wait_until(flag.data(), Compare::equal, 1);
      } catch (const Error&) {
        EXPECT_GT(state_of(world).waits().wait_point().blocks(), 0u);
        EXPECT_EQ(state_of(world).waits().wait_point().awaited(), 0u);
        world.signal_set(flag.on(0), 1);
        throw;
      }
    } else {
      while (std::atomic_ref(flag[0]).load() == 0) std::this_thread::yield();
    }
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_TRUE(errors[1].starts_with("timeout: SHOAL-N170: wait_until timed out after 200 ms"))
      << errors[1];
}

// The failure of a PE wakes those that block, whatever word they wait for.
TEST(Waits, AFailureWakesBlockedPes) {
  std::atomic<std::uint64_t> wakes = 0;
  const auto errors = errors_of(2, world_settings(), [&](Pe pe, auto bootstrap) {
    World world = World::open({world_settings(), bootstrap});
    const auto flag = world.heap().allocate<std::uint64_t>(1);
    if (pe == 1) {
      world.wait_until(flag.data(), Compare::equal, 1);
    } else {
      const WaitPoint& waiter = wait_point_of(world, 1);
      await_block(waiter);
      const std::uint64_t before = waiter.wakes();
      state_of(world).health().fail_world("out of tokens");
      wakes = waiter.wakes() - before;
    }
  });
  EXPECT_GE(wakes, 1u);
  EXPECT_TRUE(contains(errors[1], "PE 0: out of tokens")) << errors[1];
}

// Several threads of one PE wait at once, for different words.
TEST(Waits, ThreadsOfOnePeBlockTogether) {
  run_threads(2, world_settings(), [](World& world) {
    constexpr std::size_t kThreads = 4, kRounds = 50;
    const auto flags = world.heap().allocate<std::uint64_t>(kThreads);
    const Pe other = 1 - world.my_pe();
    auto& state = state_of(world);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < kThreads; ++i)
      threads.emplace_back([&, i] {
        const auto word = [&]() -> std::uint64_t {
          return state.memory().host_offset(world.heap().offset_of(flags.data() + i));
        };
        for (std::uint64_t round = 1; round <= kRounds; ++round) {
          world.signal_set(flags.on(other).subspan(i, 1), round);
          const auto ready = [&] {
            return std::atomic_ref(flags.data()[i]).load(std::memory_order_acquire) >= round;
          };
          EXPECT_EQ(state.waits().poll(ready, state.waits().deadline(), other, word),
                    detail::WaitOutcome::ready);
        }
      });
    for (std::thread& thread : threads) thread.join();
    barrier(world.team());
  });
}

}  // namespace
}  // namespace shoal::test
