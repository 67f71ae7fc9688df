// SPDX-License-Identifier: Apache-2.0
// The ofi transport in worlds of threads: every operation between two PEs uses an endpoint of
// tcp;ofi_rxm on the loopback interface.
// @traits polls, slow, uninstrumented
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checks/collective/reference.hpp"
#include "checks/transport/tunings.hpp"
#include "checks/transport/worlds.hpp"
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
  detail::sync(state_of(world.team()), "test");
}

void check_operations(World& world) {
  check_operations_over(world, "ofi");
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
  run_threads(GetParam(), settings, check_operations);
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

// Atomics over the network and instructions through shared memory update the same words.
TEST(OfiMixed, SharesWordsWithSharedMemory) {
  SHOAL_SKIP_WITHOUT_OFI();
  check_next_to_shared_memory(ofi_settings(), "ofi");
  run_threads(4, next_to_shared_memory(ofi_settings()), check_everything);
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
    check_operations(world);
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
  run_threads(2, ofi_settings(), check_threads_of_a_pe);
}

}  // namespace
}  // namespace shoal::test
