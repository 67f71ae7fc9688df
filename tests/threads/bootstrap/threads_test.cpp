// SPDX-License-Identifier: Apache-2.0
// The bootstrap for threads and the TCP bootstrap, both with one thread per PE in one process, so
// that ThreadSanitizer sees abort, aborted and close race with collective calls.
// @traits slow
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "bootstrap/tcp/socket.hpp"
#include "shoal/bootstrap.hpp"
#include "support/expect_error.hpp"
#include "support/wait_for.hpp"

namespace shoal {
namespace {

using Bytes = std::vector<std::byte>;
using Body = std::function<void(Bootstrap&)>;

enum class Kind { threads, tcp };

struct BootstrapAmongThreads : ::testing::TestWithParam<Kind> {
  /// Runs `body` on every PE. Returns the error text of each PE; empty if it threw nothing.
  std::vector<std::string> run(int n, const Body& body, int timeout_ms = 20'000) {
    Settings settings;
    settings.socket_interface = "lo";
    settings.bootstrap_timeout = std::chrono::milliseconds(timeout_ms);
    std::vector<std::unique_ptr<Bootstrap>> all(static_cast<std::size_t>(n));
    std::optional<UniqueId> id;
    if (GetParam() == Kind::threads) {
      all = thread_bootstraps(n, settings);
    } else {
      id = UniqueId::create(settings);
    }
    std::vector<std::string> errors(static_cast<std::size_t>(n));
    std::vector<std::thread> threads;
    for (int pe = 0; pe < n; ++pe)
      threads.emplace_back([&, pe] {
        const auto i = static_cast<std::size_t>(pe);
        try {
          if (id) all[i] = connect_unique_id(*id, pe, n, settings);
          body(*all[i]);
          all[i]->close();
        } catch (const Error& error) {
          errors[i] = error.what();
        }
      });
    for (auto& thread : threads) thread.join();
    return errors;
  }
};

Bytes contribution(std::int32_t pe, int round) {
  return Bytes(static_cast<std::size_t>(pe * 3 + round % 5), static_cast<std::byte>(pe + round));
}

TEST_P(BootstrapAmongThreads, AllGatherAndBarrierManyTimes) {
  for (const int n : {1, 2, 5, 8})
    for (const auto& error : run(n, [n](Bootstrap& bootstrap) {
           for (int round = 0; round < 50; ++round) {
             const auto all = bootstrap.all_gather(contribution(bootstrap.pe(), round), "round");
             ASSERT_EQ(all.size(), static_cast<std::size_t>(n));
             for (std::int32_t pe = 0; pe < n; ++pe)
               ASSERT_EQ(all[static_cast<std::size_t>(pe)], contribution(pe, round));
             bootstrap.barrier("between");
           }
         }))
      EXPECT_EQ(error, "") << n << " PEs";
}

TEST_P(BootstrapAmongThreads, BarrierWaitsForAll) {
  std::atomic<int> arrived{0};
  for (const auto& error : run(4, [&](Bootstrap& bootstrap) {
         while (bootstrap.pe() == 2 && arrived < 3) std::this_thread::yield();
         ++arrived;
         bootstrap.barrier("all");
         EXPECT_EQ(arrived, 4);
       }))
    EXPECT_EQ(error, "");
}

TEST_P(BootstrapAmongThreads, LargestContribution) {
  for (const auto& error : run(2, [](Bootstrap& bootstrap) {
         const Bytes mine(16u << 20, static_cast<std::byte>(bootstrap.pe() + 1));
         const auto all = bootstrap.all_gather(mine, "large");
         EXPECT_EQ(all[0], Bytes(16u << 20, std::byte{1}));
         EXPECT_EQ(all[1], Bytes(16u << 20, std::byte{2}));
         EXPECT_THROW(bootstrap.all_gather(Bytes((16u << 20) + 1), "too large"), Error);
       }))
    EXPECT_EQ(error, "");
}

TEST_P(BootstrapAmongThreads, AbortWakesWaitersWithItsReason) {
  const auto errors = run(4, [](Bootstrap& bootstrap) {
    if (bootstrap.pe() == 3) {
      bootstrap.abort("shoal: the disk is full");
      EXPECT_FALSE(bootstrap.aborted().has_value()) << "aborted() is about the other PEs";
      bootstrap.barrier("never");
    }
    bootstrap.barrier("never");
  });
  for (const auto& error : errors) EXPECT_EQ(error, "shoal: PE 3: the disk is full");
}

TEST_P(BootstrapAmongThreads, AbortedIsSeenWithoutACollectiveCall) {
  for (const auto& error : run(3, [](Bootstrap& bootstrap) {
         if (bootstrap.pe() == 0) return bootstrap.abort("reason");
         std::optional<std::string> seen;
         test::wait_for([&] { return (seen = bootstrap.aborted()).has_value(); });
         EXPECT_EQ(seen.value_or("nothing"), "PE 0: reason");
       }))
    EXPECT_EQ(error, "");
}

TEST_P(BootstrapAmongThreads, AbortFromAnotherThreadEndsTheOwnCall) {
  const auto errors = run(2, [](Bootstrap& bootstrap) {
    std::thread helper;
    if (bootstrap.pe() == 0)
      helper = std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        bootstrap.abort("from a helper");
      });
    try {
      if (bootstrap.pe() == 0) bootstrap.barrier("only one comes");
      while (!bootstrap.aborted()) std::this_thread::yield();
      bootstrap.barrier("too late");
    } catch (...) {
      if (helper.joinable()) helper.join();
      throw;
    }
  });
  for (const auto& error : errors) EXPECT_EQ(error, "shoal: PE 0: from a helper");
}

TEST_P(BootstrapAmongThreads, AbortedPolledDuringCollectivesLosesNothing) {
  for (const auto& error : run(3, [](Bootstrap& bootstrap) {
         std::atomic<bool> stop{false};
         std::thread watcher([&] {
           while (!stop) EXPECT_FALSE(bootstrap.aborted().has_value());
         });
         for (int round = 0; round < 200; ++round)
           EXPECT_EQ(bootstrap.all_gather(contribution(bootstrap.pe(), round), "watched")[2],
                     contribution(2, round));
         bootstrap.barrier("end");
         stop = true;
         watcher.join();
       }))
    EXPECT_EQ(error, "");
}

TEST_P(BootstrapAmongThreads, DifferentCallsAreAMismatchOnAll) {
  const auto errors = run(2, [](Bootstrap& bootstrap) {
    if (bootstrap.pe() == 0) {
      bootstrap.barrier("a");
    } else {
      bootstrap.all_gather({}, "b");
    }
  });
  for (const auto& error : errors) {
    test::expect_parts(error, {"barrier(\"a\")", "all_gather(\"b\")"});
  }
}

TEST_P(BootstrapAmongThreads, DeadlineNamesTheMissing) {
  const auto errors = run(
      4,
      [](Bootstrap& bootstrap) {
        if (bootstrap.pe() % 2 == 0) return bootstrap.barrier("heap");
        EXPECT_TRUE(test::wait_for([&] { return bootstrap.aborted().has_value(); }));
      },
      300);
  for (const std::size_t pe : {0u, 2u}) {
    test::expect_parts(errors[pe], {"PEs 1, 3 of 4 did not call barrier(\"heap\") within 300 ms",
                                    "SHOAL_BOOTSTRAP_TIMEOUT_MS"});
  }
}

TEST_P(BootstrapAmongThreads, CloseIsOrderlyAndIdempotent) {
  std::atomic<int> closed{0};
  for (const auto& error : run(3, [&](Bootstrap& bootstrap) {
         bootstrap.barrier("end");
         if (bootstrap.pe() != 1) {
           bootstrap.close();
           bootstrap.close();
           bootstrap.abort("after close this changes nothing");
           EXPECT_THROW(bootstrap.barrier("closed"), Error);
           ++closed;
         } else {
           EXPECT_TRUE(test::wait_for([&] { return closed == 2; }));
         }
         EXPECT_FALSE(bootstrap.aborted().has_value());
       }))
    EXPECT_EQ(error, "");
}

TEST_P(BootstrapAmongThreads, CallAfterAnotherClosedFailsAtOnce) {
  const auto errors = run(2, [](Bootstrap& bootstrap) {
    if (bootstrap.pe() == 0) bootstrap.barrier("one more");
  });
  test::expect_parts(errors[0], {"closed the bootstrap before barrier(\"one more\")"});
  EXPECT_EQ(errors[1], "");
}

INSTANTIATE_TEST_SUITE_P(Kinds, BootstrapAmongThreads, ::testing::Values(Kind::threads, Kind::tcp),
                         [](const auto& kind) {
                           return kind.param == Kind::threads ? "Threads" : "Tcp";
                         });

TEST(UniqueIdLifetime, WorldOutlivesTheId) {
  Settings settings;
  settings.socket_interface = "lo";
  settings.bootstrap_timeout = std::chrono::milliseconds(5'000);
  std::optional<UniqueId> id = UniqueId::create(settings);
  const std::string text = id->to_string();
  id.reset();
  const auto bootstrap = connect_unique_id(UniqueId::parse(text), 0, 1, settings);
  bootstrap->barrier("still served");
}

/// Waits until the root accepts no connection.
void expect_root_ends(const UniqueId& id) {
  const auto addresses = bootstrap::resolve(
      *bootstrap::parse_host_port(id.host + ":" + std::to_string(id.port)), "any", "test");
  EXPECT_TRUE(test::wait_for([&] {
    std::string reason;
    const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    return !bootstrap::connect_to(addresses.front(), soon, reason).valid();
  }));
}

TEST(UniqueIdLifetime, UnusedRootEndsWithItsId) {
  Settings settings;
  settings.socket_interface = "lo";
  settings.bootstrap_timeout = std::chrono::milliseconds(50);
  std::optional<UniqueId> id = UniqueId::create(settings);
  const std::string text = id->to_string();
  id.reset();
  expect_root_ends(UniqueId::parse(text));
  EXPECT_THROW(connect_unique_id(UniqueId::parse(text), 0, 1, settings), Error);
}

TEST(UniqueIdLifetime, ServesOneWorldOnly) {
  Settings settings;
  settings.socket_interface = "lo";
  settings.bootstrap_timeout = std::chrono::milliseconds(2'000);
  const UniqueId id = UniqueId::create(settings);
  connect_unique_id(id, 0, 1, settings)->close();
  expect_root_ends(id);
  EXPECT_THROW(connect_unique_id(id, 0, 1, settings), Error);
}

}  // namespace
}  // namespace shoal
