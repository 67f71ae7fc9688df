// SPDX-License-Identifier: Apache-2.0
// The ucx transport in worlds of threads: the world's operations behave as over mapped memory, for
// any SHOAL_NETWORK_DEPTH, SHOAL_NETWORK_CHUNK and SHOAL_PROGRESS_WAIT.
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
#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"
#include "support/process/progress_time.hpp"
#include "support/process/threads_called.hpp"
#include "support/world/ucx.hpp"
#include "support/world/world_local.hpp"

namespace shoal::test {
namespace {

using Ucx = WithUcx;

Pe right(const World& world) {
  return (world.my_pe() + 1) % world.n_pes();
}
Pe left(const World& world) {
  return (world.my_pe() + world.n_pes() - 1) % world.n_pes();
}

void check_operations(World& world) {
  for (Pe pe = 0; pe < world.n_pes(); ++pe)
    EXPECT_EQ(world.describe_transport(pe).find("ucx: put get atomics signals") == 0,
              pe != world.my_pe())
        << world.describe_transport(pe);
  check_everything(world);
}

class UcxWorld : public Ucx, public testing::WithParamInterface<Pe> {};

TEST_P(UcxWorld, DoesEverything) {
  run_threads(GetParam(), ucx_settings(), check_operations);
}

TEST_P(UcxWorld, RunsCollectives) {
  run_threads(GetParam(), ucx_settings(),
              [](World& world) { run_random_collectives(world, 60, 4711); });
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
    world.atomic_fetch_add(world.heap().allocate<std::uint64_t>(1).on(right(world))[0],
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

/// Long transfers in both directions at once, cut at chunks, at odd offsets.
void check_long_transfers(World& world) {
  constexpr std::size_t kBytes = (std::size_t{2} << 20) + 77;
  const auto box = world.heap().allocate<std::byte>(kBytes + 64);
  const auto flag = world.heap().allocate<std::uint64_t>(1);
  const auto made = [](Pe pe, std::uint64_t round) {
    return random_bytes(kBytes, static_cast<std::uint64_t>(pe) * 100 + round);
  };
  for (std::uint64_t round = 1; round <= 3; ++round) {
    const Bytes out = made(world.my_pe(), round);
    if (round == 2) {
      world.put_nbi(box.on(right(world)).subspan(3, kBytes), out);
      world.signal_set(flag.on(right(world)), round);
    } else {
      world.put_signal(box.on(right(world)).subspan(3, kBytes), out, flag.on(right(world)),
                       SignalOp::set, round);
    }
    world.signal_wait_until(flag.data(), Compare::equal, round);
    EXPECT_EQ(std::memcmp(box.data() + 3, made(left(world), round).data(), kBytes), 0)
        << "round " << round;
    EXPECT_EQ(box[2], std::byte{0});
    EXPECT_EQ(box[kBytes + 3], std::byte{0});
    Bytes in(kBytes);
    world.get(std::span(in), box.on(right(world)).subspan(3, kBytes));
    EXPECT_TRUE(in == out) << "round " << round;
    std::fill(in.begin(), in.end(), std::byte{0});
    world.get_nbi(std::span(in), box.on(right(world)).subspan(3, kBytes));
    world.quiet();
    EXPECT_TRUE(in == out) << "round " << round;
    barrier(world.team());
  }
}

TEST_F(Ucx, CutsLongTransfers) {
  for (const std::size_t chunk : {std::size_t{4096}, std::size_t{100'000}, std::size_t{1} << 30}) {
    Settings settings = ucx_settings();
    settings.network_chunk = chunk;
    run_threads(2, settings, check_long_transfers);
  }
}

// A PE that sees the signal sees the data, for lengths on both sides of the longest message.
void check_order(World& world) {
  constexpr std::uint64_t kRounds = 10'000;
  constexpr std::size_t kWords = 3000;
  const auto data = world.heap().allocate<std::uint64_t>(kWords);
  const auto flags =
      world.heap().allocate<std::uint64_t>(2);  // 0: data has come, 1: data has been read
  barrier(world.team());
  std::vector<std::uint64_t> out(kWords);
  std::uint64_t wrong = 0;
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    const std::size_t words = round % 4 == 0 ? kWords : 1 + round % 600;
    std::fill(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(words), round);
    const auto there = data.on(right(world)).subspan(0, words);
    if (round % 2 == 0) {
      world.put_nbi(there, std::span<const std::uint64_t>(out).first(words));
      world.signal_set(flags.on(right(world))[0], round);
    } else {
      world.put_signal(there, std::span<const std::uint64_t>(out).first(words),
                       flags.on(right(world))[0], SignalOp::set, round);
    }
    world.signal_wait_until(flags.data(), Compare::equal, round);
    for (std::size_t i = 0; i < words; ++i) wrong += data[i] != round;
    world.signal_set(flags.on(left(world))[1], round);
    world.wait_until(flags.data() + 1, Compare::equal, round);
    world.quiet();
  }
  EXPECT_EQ(wrong, 0u);
  barrier(world.team());
}

TEST_F(Ucx, ShowsDataBeforeItsSignal) {
  run_threads(2, ucx_settings(), check_order);
}

/// All PEs update the same words, some through shared memory and some over the network.
void check_mixed_atomics(World& world) {
  constexpr std::uint64_t kTimes = 2000;
  const auto words = world.heap().allocate<std::uint64_t>(4);
  const auto small = world.heap().allocate<std::uint32_t>(2);
  barrier(world.team());
  const Pe target = 1;
  for (std::uint64_t i = 0; i < kTimes; ++i) {
    world.atomic_fetch_add(words.on(target)[0], std::uint64_t{3});
    world.signal_add(words.on(target)[1], 1);
    world.atomic_fetch_add(small.on(target)[0], 1u);
    for (std::uint64_t seen = world.atomic_fetch(words.on(target)[2]);;) {
      const std::uint64_t before = world.atomic_compare_swap(words.on(target)[2], seen, seen + 2);
      if (before == seen) break;
      seen = before;
    }
  }
  world.quiet();
  barrier(world.team());
  const auto n = static_cast<std::uint64_t>(world.n_pes());
  EXPECT_EQ(world.atomic_fetch(words.on(target)[0]), 3 * n * kTimes);
  EXPECT_EQ(world.atomic_fetch(words.on(target)[1]), n * kTimes);
  EXPECT_EQ(world.atomic_fetch(words.on(target)[2]), 2 * n * kTimes);
  EXPECT_EQ(world.atomic_fetch(small.on(target)[0]), static_cast<std::uint32_t>(n * kTimes));
  barrier(world.team());
}

TEST_F(Ucx, SharesWordsWithSharedMemory) {
  Settings settings = ucx_settings();
  settings.transport_inside = "shm";
  settings.node_size = 2;
  run_threads(4, settings, [](World& world) {
    const Pe remote = (world.my_pe() + 2) % 4;
    EXPECT_EQ(world.describe_transport(remote).find("ucx: "), 0u)
        << world.describe_transport(remote);
    EXPECT_EQ(world.describe_transport(world.my_pe() ^ 1).find("shm: "), 0u);
    check_mixed_atomics(world);
    run_random_collectives(world, 20, 17);
  });
}

// A PE that polls a word never sees half of a put.
TEST_F(Ucx, PutsWordsWhole) {
  run_threads(2, ucx_settings(), [](World& world) {
    const auto word = world.heap().allocate<std::uint64_t>(1);
    constexpr std::uint64_t kLast = 20'000;
    constexpr std::uint64_t kTwice = 0x1'0000'0001;
    barrier(world.team());
    if (world.my_pe() == 0) {
      for (std::uint64_t i = 1; i <= kLast; ++i) world.put_value(word.on(1)[0], i * kTwice);
    } else {
      const std::atomic_ref<std::uint64_t> here(*word.data());
      std::uint64_t seen = 0, torn = 0;
      while (seen < kLast * kTwice) {
        const std::uint64_t now = here.load(std::memory_order_acquire);
        torn += now % kTwice != 0 || now < seen;
        seen = now;
      }
      EXPECT_EQ(torn, 0u);
    }
    barrier(world.team());
  });
}

TEST_F(Ucx, NamesTheSettingOfAWrongValue) {
  Settings settings = ucx_settings();
  settings.ucx_tls = "nonsense";
  expect_error(Code::unsupported, "SHOAL_UCX_TLS \"nonsense\"",
               [&] { run_threads(2, settings, check_rma); });
}

// Threads of a PE that call at once share the worker.
TEST_F(Ucx, ServesSeveralThreadsOfAPe) {
  run_threads(2, ucx_settings(), [](World& world) {
    constexpr std::size_t kThreads = 3, kTimes = 300, kWords = 2500;
    const auto sums = world.heap().allocate<std::uint64_t>(1);
    const auto boxes = world.heap().allocate<std::uint64_t>(kThreads * kWords);
    barrier(world.team());
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        std::vector<std::uint64_t> out(kWords), in(kWords);
        for (std::size_t i = 0; i < kTimes; ++i) {
          std::iota(out.begin(), out.end(), i * 10'000 + t);
          const auto there = boxes.on(right(world)).subspan(t * kWords, kWords);
          world.put(there, out);
          world.quiet();
          world.get(std::span(in), there);
          ASSERT_EQ(in, out);
          world.atomic_fetch_add(sums.on(0)[0], std::uint64_t{1});
        }
      });
    for (auto& thread : threads) thread.join();
    barrier(world.team());
    EXPECT_EQ(world.atomic_fetch(sums.on(0)[0]), 2 * kThreads * kTimes);
    barrier(world.team());
  });
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
