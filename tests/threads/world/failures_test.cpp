// SPDX-License-Identifier: Apache-2.0
// The PE that a failure is attributed to, and the calls that follow a failure.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "checks/world/operations.hpp"
#include "fabric/fabric.hpp"
#include "pe/control.hpp"
#include "pe/memory.hpp"
#include "shoal/collective.hpp"
#include "shoal/observe.hpp"
#include "support/expect_error.hpp"
#include "support/wait_for.hpp"
#include "support/world/world_errors.hpp"
#include "team/exchange.hpp"
#include "world/state.hpp"

namespace shoal::test {
namespace {

using detail::ControlLayout;
using detail::PeerStatus;
using detail::StatusEntry;

void wait_for(const std::atomic<int>& counter, int value) {
  EXPECT_TRUE(test::wait_for([&] { return counter >= value; }));
}

/// Writes to the status board of one PE that this PE has failed: the other PEs do not know yet.
void fail_for(const World& world, Pe observer, const std::string& reason) {
  auto& state = state_of(world);
  const ControlLayout& layout = state.memory().layout();
  const std::size_t entry = layout.status(world.my_pe());
  char message[StatusEntry::kMessageBytes] = {};
  std::memcpy(message, reason.data(), reason.size());
  transport::Transport& route = state.fabric().route(observer);
  route.put(observer, entry + offsetof(StatusEntry, message), message, sizeof message);
  route.signal(observer, entry, SignalOp::set, static_cast<std::uint64_t>(PeerStatus::failed));
  route.signal(observer, layout.alerts(), SignalOp::add, 1);
}

/// PE 2 fails, and only PE 1 notices. PE 1 fails as well, by `fail`. Returns what PE 0 throws,
/// which waits for PE 1.
std::string error_of_survivor(const std::function<void(World&, const Error&)>& fail) {
  std::atomic<int> waiting = 0;
  std::atomic<int> done = 0;
  const auto errors = errors_of(3, world_settings(), [&](Pe pe, auto bootstrap) {
    World world = World::open({world_settings(), bootstrap});
    Team pair = world.team().split_strided(0, 1, 2);
    if (pe != 0) pair = Team();  // `world` is then the only handle
    if (pe == 2) {
      wait_for(waiting, 1);
      fail_for(world, 1, "pid 7 ended");
      wait_for(done, 2);
      return;
    }
    ++waiting;
    try {
      if (pe == 0) sync(pair);
      if (pe == 1) sync(world.team());
    } catch (const Error& error) {
      if (pe == 1) fail(world, error);
      ++done;
      throw;
    }
  });
  return errors[0];
}

TEST(FirstCause, SurvivorsNameThePeThatFailedFirst) {
  const std::string error = error_of_survivor(
      [](World& world, const Error& own) { state_of(world).health().fail_world(own.what()); });
  EXPECT_TRUE(error.starts_with("peer_failed")) << error;
  EXPECT_TRUE(contains(error, "failed on PE 0 of 3: PE 2: pid 7 ended; it was waiting for PE 1"))
      << error;
}

TEST(FirstCause, AHandleDroppedDuringAnExceptionPassesTheCauseOn) {
  const std::string error = error_of_survivor([](World& world, const Error& own) {
    const auto drop = [&] {
      const World dropped = std::move(world);
      throw Error(own);
    };
    EXPECT_THROW(drop(), Error);
  });
  EXPECT_TRUE(contains(error, "PE 2: pid 7 ended; it was waiting for PE 1")) << error;
}

TEST(FirstCause, AnIndependentFailureKeepsItsOwnName) {
  const auto errors = errors_of(2, world_settings(), [](Pe pe, auto bootstrap) {
    World world = World::open({world_settings(), bootstrap});
    if (pe == 1) {
      state_of(world).health().fail_world("out of tokens");
      ASSERT_TRUE(state_of(world).health().first_cause());
      EXPECT_EQ(state_of(world).health().first_cause()->text(), "PE 1: out of tokens");
    }
    // A wait that ends on both PEs.
    world.wait_until(reinterpret_cast<std::uint64_t*>(world.heap().base()), Compare::equal, 1);
  });
  for (const std::string& error : errors) {
    EXPECT_TRUE(error.starts_with("peer_failed")) << error;
    EXPECT_TRUE(contains(error, "PE 1: out of tokens")) << error;
  }
}

// Property that groups rely on: the cause is there before any signal that follows it, and does not
// end waits.
TEST(FirstCause, IsPublishedWithoutFailingTheWorld) {
  run_threads(3, world_settings(), [](World& world) {
    auto& state = state_of(world);
    for (int round = 0; round < 5; ++round) {
      const std::string reason = "late for dispatch " + std::to_string(round);
      if (world.my_pe() == 0) state.health().publish_cause({2, reason});
      barrier(world.team());
      if (world.my_pe() != 0) {
        const auto cause = state.health().published_cause(0);
        ASSERT_TRUE(cause);
        EXPECT_EQ(cause->text(), "PE 2: " + reason);
      }
      EXPECT_FALSE(state.health().published_cause(1));
      EXPECT_FALSE(state.health().failure());
      barrier(world.team());
    }
  });
}

// PE 2 is late. PE 0 gives up its free and makes further calls. These must not overwrite the entry
// of the free, which PE 1 and PE 2 read later.
TEST(SwallowedFailure, DoesNotMakeAnInnocentPeDiffer) {
  std::atomic<int> given_up = 0;
  std::atomic<int> freed = 0;
  const auto errors = errors_of(3, world_settings(), [&](Pe pe, auto bootstrap) {
    Settings settings = world_settings();
    if (pe == 0) settings.timeout = std::chrono::milliseconds(100);
    World world = World::open({settings, bootstrap});
    void* const memory = world.heap().malloc(1000);
    if (pe == 0) {
      const auto again = [&](const char* text, const std::function<void()>& call) {
        expect_error(Code::timeout, text, call);
      };
      again("free of 1024 bytes at offset 0 (operation 2 of team 0) timed out",
            [&] { world.heap().free(memory); });
      again("an earlier operation of team 0 failed on this PE: free of 1024 bytes",
            [&] { barrier(world.team()); });
      again("an earlier operation of team 0 failed on this PE", [&] { world.heap().malloc(64); });
      ++given_up;
      wait_for(freed, 2);
      return;
    }
    wait_for(given_up, 1);
    EXPECT_NO_THROW(world.heap().free(memory));
    ++freed;
    wait_for(freed, 2);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Its later failures follow from the first one.
TEST(SwallowedFailure, OfATeamWritesTheFlightRecordOnce) {
  char folder[] = "/tmp/shoal-flight-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string file = std::string(folder) + "/shoal_flight_0.json";
  std::atomic<int> done = 0;
  const auto errors = errors_of(2, world_settings(), [&](Pe pe, auto bootstrap) {
    Settings settings = world_settings();
    settings.flight_dir = folder;
    if (pe == 0) settings.timeout = std::chrono::milliseconds(100);
    World world = World::open({settings, bootstrap});
    if (pe == 1) return wait_for(done, 1);
    const struct Done {
      std::atomic<int>& flag;
      ~Done() { flag = 1; }
    } release{done};
    expect_error(Code::timeout, "barrier", [&] { barrier(world.team()); });
    EXPECT_TRUE(std::filesystem::remove(file));
    expect_error(Code::timeout, "failed on this PE", [&] { barrier(world.team()); });
    EXPECT_FALSE(std::filesystem::exists(file));
    observe::write_flight_record(world, folder);
    const observe::PeRecord seen = observe::read_files(folder).at(0);
    expect_parts(seen.failure, {"barrier", "waiting for PE 1"});
    EXPECT_EQ(seen.totals.at(0).operation, "barrier");
    EXPECT_EQ(seen.totals.at(0).operations, 2U);
    EXPECT_EQ(seen.totals.at(0).failures, 2U);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  std::filesystem::remove_all(folder);
}

// A PE that waits for a PE that timed out reports the cause of that timeout.
TEST(SwallowedFailure, IsExplainedToThoseWhoWaitLater) {
  std::atomic<int> given_up = 0;
  std::atomic<int> done = 0;
  const auto errors = errors_of(3, world_settings(), [&](Pe pe, auto bootstrap) {
    Settings settings = world_settings();
    settings.timeout = std::chrono::milliseconds(100);
    World world = World::open({settings, bootstrap});
    if (pe == 0) {
      // Waits for PE 2 first, the one before it in the ring.
      expect_error(Code::timeout, "waiting for PE 2", [&] { barrier(world.team()); });
      ++given_up;
    } else if (pe == 1) {
      wait_for(given_up, 1);
      const auto cause = state_of(world).health().published_cause(0);
      EXPECT_TRUE(cause);
      EXPECT_EQ(cause.value_or(detail::FailureCause{}).text(),
                "PE 2: late for barrier (operation 1 of team 0)");
    }
    ++done;
    wait_for(done, 3);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(SymmetricHeap, AForeignPointerFailsForItsCallerAlone) {
  run_threads(3, world_settings(), [](World& world) {
    int elsewhere = 0;
    void* const memory = world.heap().malloc(1000);
    if (world.my_pe() == 1) {
      expect_error(Code::invalid_argument, "did not return",
                   [&] { world.heap().free(&elsewhere); });
      expect_error(Code::invalid_argument, "did not return",
                   [&] { world.heap().free(static_cast<std::byte*>(memory) + 128); });
    }
    barrier(world.team());  // the PEs are still in step
    world.heap().free(memory);
    EXPECT_EQ(world.heap().malloc(0), nullptr);
  });
}

TEST(SymmetricHeap, ADifferentCallIsNamedWithItsSize) {
  run_threads(2, world_settings(), [](World& world) {
    const auto call = [&] {
      if (world.my_pe() == 0) {
        world.heap().malloc(100);
      } else {
        detail::exchange(state_of(world.team()), "abcd", 4, "gather");
      }
    };
    expect_error(Code::mismatch, "malloc of 100 bytes at offset 0", call);
    try {
      call();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_FALSE(contains(error.what(), "with 4 bytes")) << error.what();
      EXPECT_FALSE(contains(error.what(), "32 bytes")) << error.what();
    }
  });
}

}  // namespace
}  // namespace shoal::test
