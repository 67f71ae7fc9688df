// SPDX-License-Identifier: Apache-2.0
// The ucx transport in worlds of threads: the world's operations behave as over mapped memory, for
// any SHOAL_NETWORK_DEPTH, SHOAL_NETWORK_CHUNK and SHOAL_PROGRESS_WAIT.
// @traits polls, uninstrumented
#include <gtest/gtest.h>

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "checks/collective/reference.hpp"
#include "checks/transport/tunings.hpp"
#include "checks/transport/worlds.hpp"
#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"
#include "support/process/progress_time.hpp"
#include "support/process/threads_called.hpp"
#include "support/rounds.hpp"
#include "support/world/ucx.hpp"
#include "support/world/world_local.hpp"

namespace shoal::test {
namespace {

using Ucx = WithUcx;

void check_operations(World& world) {
  check_operations_over(world, "ucx");
}

class UcxWorld : public Ucx, public testing::WithParamInterface<Pe> {};

TEST_P(UcxWorld, DoesEverything) {
  run_threads(GetParam(), ucx_settings(), check_operations);
}

TEST_P(UcxWorld, RunsCollectives) {
  run_threads(GetParam(), ucx_settings(),
              [](World& world) { run_random_collectives(world, rounds(60, 12), 4711); });
}

INSTANTIATE_TEST_SUITE_P(Sizes, UcxWorld, testing::Values(2, 3, 5),
                         testing::PrintToStringParamName());

class UcxWaiting : public Ucx, public testing::WithParamInterface<const char*> {};

// Few operations: with more threads than cores, each turn of a spinning thread costs a time slice.
TEST_P(UcxWaiting, MovesDataAndSignals) {
  Settings settings = ucx_settings();
  settings.progress_wait = GetParam();
  settings.progress_core = 0;
  run_threads(2, settings, [](World& world) {
    barrier(world.team());
    if (cores_of(0).contains(0) && cores_of(0).contains(1)) {
      const std::set<std::set<int>> wanted{{0}, {1}};
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      while (cores_of("shoal-ucx") != wanted && std::chrono::steady_clock::now() < deadline)
        std::this_thread::yield();
      EXPECT_EQ(cores_of("shoal-ucx"), wanted) << "a core for the progress thread of each PE";
    }
    barrier(world.team());
    check_strided(world);
    check_peer_pointer(world);
    check_registered_buffers(world);
    world.atomic_fetch_add(
        world.heap().allocate<std::uint64_t>(1).on((world.my_pe() + 1) % world.n_pes())[0],
        std::uint64_t{1});
    barrier(world.team());
  });
}

INSTANTIATE_TEST_SUITE_P(Policies, UcxWaiting, testing::Values("spin", "yield", "sleep"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_F(Ucx, FollowsTheProgressWaitSetting) {
  expect_progress_waits_as_told(ucx_settings(), "shoal-ucx");
}

// One request in flight is enough for all operations, also for a signal after a long put.
TEST_F(Ucx, WorksAtDepthOne) {
  Settings settings = ucx_settings();
  settings.network_depth = 1;
  settings.network_chunk = 4096;
  run_threads(3, settings, check_operations);
}

TEST_F(Ucx, BoundsRequestsInFlight) {
  for (const std::int64_t depth : {1, 2, 64}) {
    const Settings settings = tuned(ucx_settings(), {"", depth, 4096});
    run_threads(2, settings, [&](World& world) { check_many_requests(world, depth); });
  }
}

TEST_F(Ucx, CutsLongTransfers) {
  for (const std::size_t chunk : {std::size_t{4096}, std::size_t{100'000}, std::size_t{1} << 30}) {
    Settings settings = ucx_settings();
    settings.network_chunk = chunk;
    run_threads(2, settings, check_long_transfers);
  }
}

TEST_F(Ucx, ShowsDataBeforeItsSignal) {
  run_threads(2, ucx_settings(), check_data_before_signals);
}

TEST_F(Ucx, SharesWordsWithSharedMemory) {
  check_next_to_shared_memory(ucx_settings(), "ucx");
}

TEST_F(Ucx, PutsWordsWhole) {
  run_threads(2, ucx_settings(), check_words_are_whole);
}

TEST_F(Ucx, NamesTheSettingOfAWrongValue) {
  Settings settings = ucx_settings();
  settings.ucx_tls = "nonsense";
  expect_error(Code::unsupported, "SHOAL_UCX_TLS \"nonsense\"",
               [&] { run_threads(2, settings, check_rma); });
}

TEST_F(Ucx, ServesSeveralThreadsOfAPe) {
  run_threads(2, ucx_settings(), check_threads_of_a_pe);
}

// The signal handlers of the program stay as they were.
TEST_F(Ucx, TakesNoSignalHandlers) {
  run_threads(2, ucx_settings(), [](World& world) { barrier(world.team()); });
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGHUP}) {
    struct sigaction now{};
    ASSERT_EQ(sigaction(number, nullptr, &now), 0);
    Dl_info info{};
    const bool known = now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN &&
                       dladdr(reinterpret_cast<const void*>(now.sa_sigaction), &info) != 0 &&
                       info.dli_fname != nullptr;
    EXPECT_TRUE(!known || std::string(info.dli_fname).find("libuc") == std::string::npos)
        << "signal " << number << " is handled by " << info.dli_fname;
  }
}

}  // namespace
}  // namespace shoal::test
