// SPDX-License-Identifier: Apache-2.0
// The ofi transport in worlds of threads: every operation between two PEs uses an endpoint of
// tcp;ofi_rxm on the loopback interface.
// @traits polls, slow, uninstrumented
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "checks/collective/reference.hpp"
#include "checks/transport/tunings.hpp"
#include "checks/world/operations.hpp"
#include "fabric/fabric.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"
#include "support/made_up.hpp"
#include "support/process/progress_time.hpp"
#include "support/process/threads_called.hpp"
#include "support/rounds.hpp"
#include "support/world/ofi.hpp"
#include "team/exchange.hpp"
#include "world/state.hpp"

namespace shoal::test {
namespace {

void sync(World& world) {
  detail::sync(world.team().state(), "test");
}

class OfiWorld : public testing::TestWithParam<Pe> {
 protected:
  void SetUp() override { SHOAL_SKIP_WITHOUT_OFI(); }
};

std::string pes(const testing::TestParamInfo<Pe>& info) {
  return std::to_string(info.param) + "_pes";
}

TEST_P(OfiWorld, DoesEveryOperation) {
  Settings settings = ofi_settings();
  settings.max_teams = 40;
  run_threads(GetParam(), settings, [](World& world) {
    for (Pe pe = 0; pe < world.n_pes(); ++pe)
      if (pe != world.my_pe())
        expect(world.describe_transport(pe).starts_with("ofi: "), world.describe_transport(pe));
    check_everything(world);
  });
}

TEST_P(OfiWorld, RunsCollectives) {
  Settings settings = ofi_settings();
  settings.symmetric_size = 32 << 20;
  run_threads(GetParam(), settings,
              [](World& world) { run_random_collectives(world, rounds(25, 8), 7); });
}

INSTANTIATE_TEST_SUITE_P(Sizes, OfiWorld, testing::Values(2, 3, 5), pes);

class OfiTuning : public testing::TestWithParam<Tuning> {
 protected:
  void SetUp() override { SHOAL_SKIP_WITHOUT_OFI(); }
  static Settings settings() { return tuned(ofi_settings(), GetParam()); }
};

TEST_P(OfiTuning, MovesTransfersLongerThanAChunk) {
  run_threads(2, settings(), [](World& world) { check_chunks(world, GetParam().chunk); });
}

TEST_P(OfiTuning, KeepsManyRequestsInFlightBounded) {
  run_threads(2, settings(), [](World& world) { check_many_requests(world, GetParam().depth); });
}

TEST_P(OfiTuning, SignalsAfterData) {
  const int rounds = GetParam().depth == 1 ? 2000 : 10'000;
  run_threads(2, settings(), [&](World& world) { check_signals_after_data(world, rounds); });
}

TEST_P(OfiTuning, RunsCollectives) {
  run_threads(3, settings(), [](World& world) {
    run_random_collectives(world, std::string_view(GetParam().wait) == "spin" ? 3 : 10, 3);
  });
}

INSTANTIATE_TEST_SUITE_P(Tunings, OfiTuning, testing::ValuesIn(kTunings),
                         testing::PrintToStringParamName());

// Few steps: a progress thread that spins on the core of a PE costs it a time slice per step.
TEST(OfiProgress, SpinsOnCoresOfItsOwn) {
  SHOAL_SKIP_WITHOUT_OFI();
  Settings settings = ofi_settings();
  settings.progress_wait = "spin";
  settings.progress_core = 0;
  run_threads(2, settings, [](World& world) {
    if (cores_of(0).contains(0) && cores_of(0).contains(1)) {
      expect(cores_of("shoal-ofi") == std::set<std::set<int>>{{0}, {1}},
             "a core for the progress thread of each PE, from core 0 on");
    }
    sync(world);
    const auto box = world.heap().allocate<std::byte>(5000);
    const auto flag = world.heap().allocate<std::uint64_t>(1);
    std::vector<std::byte> data(box.size());
    const Pe other = 1 - world.my_pe();
    for (std::uint64_t i = 1; i <= 5; ++i) {
      fill(data.data(), data.size(), i);
      world.put_signal(box.on(other), std::span<const std::byte>(data), flag.on(other),
                       SignalOp::set, i);
      world.signal_wait_until(flag.data(), Compare::greater_equal, i);
      expect(holds(box.data(), box.size(), i), "the signal came before the data");
      sync(world);
    }
  });
}

TEST(OfiProgress, FollowsTheProgressWaitSetting) {
  SHOAL_SKIP_WITHOUT_OFI();
  expect_progress_waits_as_told(ofi_settings(), "shoal-ofi");
}

TEST(OfiOrder, FenceOrdersPuts) {
  SHOAL_SKIP_WITHOUT_OFI();
  run_threads(2, ofi_settings(), check_fence_between_puts);
}

void update_together(World& world) {
  constexpr std::uint64_t kTimes = 2000;
  const auto words = world.heap().allocate<std::uint64_t>(8);
  const auto small = world.heap().allocate<std::uint32_t>(8);
  expect(world.describe_transport((world.my_pe() + 1) % 2 + world.my_pe() / 2 * 2).find("shm") !=
             std::string::npos,
         "shm inside");
  expect(world.describe_transport((world.my_pe() + 2) % 4).find("ofi") != std::string::npos,
         "ofi between");
  const auto n = static_cast<std::uint64_t>(world.n_pes());
  for (std::uint64_t i = 0; i < kTimes; ++i) {
    world.atomic_fetch_add(words.on(0)[0], std::uint64_t{1});
    world.atomic_fetch_add(words.on(3)[1], std::uint64_t{3});
    world.signal_add(words.on(0)[2], 1);
    world.atomic_fetch_add(small.on(2)[0], 1U);
    world.atomic_fetch_xor(words.on(1)[3], std::uint64_t{1} << world.my_pe());
  }
  world.quiet();
  sync(world);
  expect(world.atomic_fetch(words.on(0)[0]) == n * kTimes, "atomic_add");
  expect(world.atomic_fetch(words.on(3)[1]) == 3 * n * kTimes, "atomic_fetch_add");
  expect(world.atomic_fetch(words.on(0)[2]) == n * kTimes, "signal_add");
  expect(world.atomic_fetch(small.on(2)[0]) == n * kTimes, "32-bit atomic_add");
  expect(world.atomic_fetch(words.on(1)[3]) == 0, "atomic_fetch_xor");
  sync(world);
}

// Atomics over the network and instructions through shared memory update the same words.
TEST(OfiMixed, SharesWordsWithSharedMemory) {
  SHOAL_SKIP_WITHOUT_OFI();
  Settings settings = world_settings();
  settings.transport_between = "ofi";
  settings.node_size = 2;
  run_threads(4, settings, [](World& world) {
    update_together(world);
    check_everything(world);
  });
}

// Other providers register and address memory differently, and order less.
class OfiProvider : public testing::TestWithParam<const char*> {};

TEST_P(OfiProvider, DoesEveryOperation) {
  SHOAL_SKIP_WITHOUT_OFI();
#ifdef __SANITIZE_ADDRESS__
  if (std::string_view(GetParam()).starts_with("net"))
    GTEST_SKIP() << "libfabric's net provider does not free all that it takes";
#endif
  Settings settings = ofi_settings();
  settings.max_teams = 40;
  settings.ofi_provider = GetParam();
  try {
    run_threads(3, settings, [](World&) {});
  } catch (const Error& error) {
    if (error.code() != Code::unsupported) throw;
    GTEST_SKIP() << "no " << GetParam() << " here: " << error.what();
  }
  run_threads(3, settings, [](World& world) {
    for (Pe pe = 0; pe < world.n_pes(); ++pe)
      if (pe != world.my_pe())
        expect(world.describe_transport(pe).starts_with("ofi: "), world.describe_transport(pe));
    check_everything(world);
    run_random_collectives(world, 10, 5);
  });
}

INSTANTIATE_TEST_SUITE_P(Others, OfiProvider,
                         testing::Values("net;ofi_rxm", "net", "shm", "udp;ofi_rxd"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           std::replace(name.begin(), name.end(), ';', '_');
                           return name;
                         });

TEST(OfiChoiceOfProvider, NamesAProviderThatDoesNotExist) {
  SHOAL_SKIP_WITHOUT_OFI();
  Settings settings = ofi_settings();
  settings.ofi_provider = "no_such_provider";
  expect_error(Code::unsupported, "SHOAL_OFI_PROVIDER",
               [&] { run_threads(2, settings, [](World&) {}); });
  expect_error(Code::unsupported, "no_such_provider",
               [&] { run_threads(2, settings, [](World&) {}); });
}

TEST(OfiThreads, SeveralThreadsOfAPeOperateAtOnce) {
  SHOAL_SKIP_WITHOUT_OFI();
  run_threads(2, ofi_settings(), [](World& world) {
    constexpr std::size_t kThreads = 3, kTimes = 300, kBytes = 3000;
    const auto box = world.heap().allocate<std::byte>(kThreads * kBytes);
    const auto count = world.heap().allocate<std::uint64_t>(kThreads);
    const Pe other = 1 - world.my_pe();
    std::vector<std::thread> threads;
    std::vector<std::string> failures(kThreads);
    for (std::size_t t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        try {
          std::vector<std::byte> data(kBytes), back(kBytes);
          fill(data.data(), kBytes, t);
          const auto mine = box.on(other).subspan(t * kBytes, kBytes);
          for (std::size_t i = 0; i < kTimes; ++i) {
            world.put(mine, std::span<const std::byte>(data));
            world.quiet();
            world.get(std::span(back), mine);
            expect(back == data, "round trip");
            expect(world.atomic_fetch_add(count.on(other)[t], std::uint64_t{1}) == i, "count");
          }
        } catch (const std::exception& error) {
          failures[t] = error.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& failure : failures) expect(failure.empty(), failure);
    sync(world);
  });
}

}  // namespace
}  // namespace shoal::test
