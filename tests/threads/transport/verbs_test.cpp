// SPDX-License-Identifier: Apache-2.0
// The verbs transport in worlds of threads, over the emulated NIC in each of its ordering tiers,
// with packets that are lost, doubled and reordered.
// @traits polls, slow
// @soak VerbsSoak.*
// @soak-tsan *DoesEverything/5:*DoesEverything/2:*/strict:*/unordered
// @soak-tsan *Tuning*/small_chunk:*Tuning*/depth_1:Verbs.DoesEverythingOverRoce
// @soak-tsan Verbs.WorksInTheNaiveOrder:Verbs.WorksAtDepthOne
// @soak-tsan Verbs.PutsWordsWholeOnADeviceThatPlacesBytes
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "checks/collective/reference.hpp"
#include "checks/transport/tunings.hpp"
#include "checks/transport/worlds.hpp"
#include "shoal/bootstrap.hpp"
#include "shoal/collective.hpp"
#include "shoal/connectivity.hpp"
#include "shoal/ep/group.hpp"
#include "support/expect_error.hpp"
#include "support/process/progress_time.hpp"
#include "support/rounds.hpp"
#include "support/world/verbs.hpp"
#include "support/world/world_local.hpp"

namespace shoal::test {
namespace {

using Verbs = WithVerbs;

void check_operations(World& world) {
  check_operations_over(world, "verbs");
}

class VerbsWorld : public Verbs, public testing::WithParamInterface<Pe> {};

TEST_P(VerbsWorld, DoesEverything) {
  run_threads(GetParam(), verbs_settings(), check_operations);
}

TEST_P(VerbsWorld, RunsCollectives) {
  run_threads(GetParam(), verbs_settings(),
              [](World& world) { run_random_collectives(world, rounds(60, 12), 4711); });
}

INSTANTIATE_TEST_SUITE_P(Sizes, VerbsWorld, testing::Values(2, 3, 5),
                         testing::PrintToStringParamName());

class VerbsTier : public Verbs, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    Verbs::SetUp();
    emulate("ORDERING", GetParam());
    if (GetParam() != std::string("strict")) emulate("REORDERING", "0.3");
  }
};

TEST_P(VerbsTier, DoesEverything) {
  Settings settings = verbs_settings();
  settings.verbs_queue_pairs = 2;
  run_threads(3, settings, check_operations);
}

TEST_P(VerbsTier, ShowsDataBeforeItsSignal) {
  run_threads(2, verbs_settings(), check_data_before_signals);
}

TEST_P(VerbsTier, RunsCollectives) {
  run_threads(3, verbs_settings(),
              [](World& world) { run_random_collectives(world, rounds(40, 10), 17); });
}

TEST_P(VerbsTier, CutsLongTransfers) {
  for (const std::size_t chunk : {std::size_t{4096}, std::size_t{100'000}, std::size_t{1} << 30}) {
    Settings settings = verbs_settings();
    settings.network_chunk = chunk;
    settings.verbs_queue_pairs = 3;
    run_threads(2, settings, check_long_transfers);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, VerbsTier, testing::Values("strict", "adaptive", "unordered"),
                         [](const auto& instance) { return std::string(instance.param); });

// The wire between hosts: a RoCE port instead of an InfiniBand one.
TEST_F(Verbs, DoesEverythingOverRoce) {
  use_udp();
  Settings settings = verbs_settings();
  settings.verbs_queue_pairs = 2;
  run_threads(3, settings, [](World& world) {
    check_operations(world);
    run_random_collectives(world, rounds(20, 6), 4711);
  });
}

class VerbsTuning : public Verbs, public testing::WithParamInterface<Tuning> {
 protected:
  static Settings settings() { return tuned(verbs_settings(), GetParam()); }
};

TEST_P(VerbsTuning, MovesTransfersLongerThanAChunk) {
  run_threads(2, settings(), [](World& world) { check_chunks(world, GetParam().chunk); });
}

TEST_P(VerbsTuning, KeepsManyRequestsInFlightBounded) {
  run_threads(2, settings(), [](World& world) { check_many_requests(world, GetParam().depth); });
}

TEST_P(VerbsTuning, SignalsAfterData) {
  run_threads(2, settings(),
              [](World& world) { check_signals_after_data(world, rounds(3000, 300)); });
}

TEST_P(VerbsTuning, RunsCollectives) {
  run_threads(3, settings(), [](World& world) { run_random_collectives(world, 10, 3); });
}

INSTANTIATE_TEST_SUITE_P(Tunings, VerbsTuning, testing::ValuesIn(kTunings),
                         testing::PrintToStringParamName());

TEST_P(VerbsTier, FenceOrdersPuts) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "it polls words of a put that has no signal, which the sanitizer reports";
#endif
  run_threads(2, verbs_settings(), check_fence_between_puts);
}

// One request in flight is enough for all operations; so is the smallest queue.
TEST_F(Verbs, WorksAtDepthOne) {
  Settings settings = verbs_settings();
  settings.network_depth = 1;
  settings.network_chunk = 4096;
  settings.verbs_depth = 16;
  settings.verbs_inline = 0;
  run_threads(3, settings, check_operations);
}

TEST_F(Verbs, SharesWordsWithSharedMemory) {
  check_next_to_shared_memory(verbs_settings(), "verbs");
}

TEST_F(Verbs, DoesEverythingNextToSharedMemory) {
  run_threads(4, next_to_shared_memory(verbs_settings()), check_everything);
}

TEST_F(Verbs, PutsWordsWhole) {
  run_threads(2, verbs_settings(), check_words_are_whole);
}

// The device behaves like soft-RoCE, which copies with a processor.
TEST_F(Verbs, PutsWordsWholeOnADeviceThatPlacesBytes) {
  emulate("WORDS", "bytes");
  run_threads(2, verbs_settings(), [](World& world) {
    check_words_are_whole(world);
    check_rma(world);
    check_fence(world);
  });
}

TEST_F(Verbs, ServesSeveralThreadsOfAPe) {
  run_threads(2, verbs_settings(), check_threads_of_a_pe);
}

TEST_F(Verbs, FollowsTheProgressWaitSetting) {
  expect_progress_waits_as_told(verbs_settings(), "shoal-verbs");
}

/// Lists the all-gathers of a world's start.
class ListedGathers final : public Bootstrap {
 public:
  ListedGathers(std::unique_ptr<Bootstrap> inner, std::vector<std::string>& steps)
      : inner_(std::move(inner)), steps_(steps) {}
  std::int32_t pe() const noexcept override { return inner_->pe(); }
  std::int32_t n_pes() const noexcept override { return inner_->n_pes(); }
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine,
                                                 std::string_view step) override {
    steps_.emplace_back(step);
    return inner_->all_gather(mine, step);
  }
  void barrier(std::string_view step) override { inner_->barrier(step); }
  void abort(const std::string& reason) noexcept override { inner_->abort(reason); }
  std::optional<std::string> aborted() noexcept override { return inner_->aborted(); }
  void close() noexcept override { inner_->close(); }

 private:
  std::unique_ptr<Bootstrap> inner_;
  std::vector<std::string>& steps_;
};

TEST_F(Verbs, AddressesOfAllQueuePairsGoThroughOneAllGather) {
  constexpr std::size_t kPes = 3;
  std::vector<std::string> of_one_pair;
  for (const std::int64_t queue_pairs : {1, 5}) {
    Settings settings = verbs_settings();
    settings.verbs_queue_pairs = queue_pairs;
    auto bootstraps = thread_bootstraps(kPes);
    std::vector<std::vector<std::string>> steps(kPes);
    std::vector<std::thread> threads;
    for (std::size_t pe = 0; pe < kPes; ++pe)
      threads.emplace_back([&, pe] {
        auto listed = std::make_shared<ListedGathers>(std::move(bootstraps[pe]), steps[pe]);
        EXPECT_NO_THROW(World::open({settings, listed}).close());
      });
    for (std::thread& thread : threads) thread.join();
    for (const std::vector<std::string>& own : steps) {
      EXPECT_EQ(std::ranges::count(own, "network"), 1);
      EXPECT_EQ(std::ranges::count(own, "network links"), 1);
      if (of_one_pair.empty()) of_one_pair = own;
      EXPECT_EQ(own, of_one_pair) << queue_pairs << " queue pairs";
    }
  }
}

TEST_F(Verbs, WorksInTheNaiveOrder) {
  Settings settings = verbs_settings();
  settings.verbs_queue_order = "naive";
  run_threads(3, settings, check_operations);
}

// The setting of these tests is in effect: device commands need a libmlx5.
TEST_F(Verbs, UsesTheInterfaceOfTheSetting) {
  Settings settings = verbs_settings();
  settings.verbs_mlx5_library = "libmlx5-is-not-here.so";
  const auto run = [&] { run_threads(2, settings, check_rma); };
  if (verbs_interface() == "devx")
    expect_error(Code::unsupported, "libmlx5 cannot be loaded", run);
  else
    run();
}

// Without an active port, and where verbs does not start, other networks follow
// (tests/tools/test_environment.py): libraries that keep the emulated NIC open.
TEST_F(Verbs, IsTheFirstNetworkWhereAllHaveAnActivePort) {
  Settings settings = verbs_settings();
  settings.transport_inside = settings.transport_between = "network";
  run_threads(2, settings, [](World& world) {
    check_rma(world);
    for (const PairConnectivity& pair : world.connectivity().pairs)
      if (pair.a != pair.b) EXPECT_EQ(pair.chosen()->transport, "verbs");
  });
}

// Soak: one packet of a hundred is lost, some are doubled; outside the strict tier, some overtake
// others.
class VerbsSoak : public Verbs {
 protected:
  static void survive(const char* ordering) {
    emulate("ORDERING", ordering);
    emulate("LOSS", "0.01");
    emulate("DUPLICATION", "0.01");
    emulate("REORDERING", "0.05");
    run_threads(2, verbs_settings(), [](World& world) {
      check_everything(world);
      run_random_collectives(world, rounds(40, 8), 99);
    });
  }
};

TEST_F(VerbsSoak, SurvivesLossInTheStrictTier) {
  survive("strict");
}

TEST_F(VerbsSoak, SurvivesLossUnderAdaptiveRouting) {
  survive("adaptive");
}

TEST_F(VerbsSoak, SurvivesLossInTheUnorderedTier) {
  survive("unordered");
}

// NIC atomics that are atomic among each other alone would lose updates of PEs that share memory
// with the target, so processors execute all atomics.
TEST_F(Verbs, SharesWordsWhereTheNicIsNotAtomicTowardsProcessors) {
  emulate("ATOMICS", "nic");
  run_threads(4, next_to_shared_memory(verbs_settings()), check_mixed_atomics);
}

/// Report of rank 0 when a group of two nodes is created.
std::string reported_by_group(const Settings& settings) {
  std::string text;
  run_threads(2, settings, [&](World& world) {
    barrier(world.team());
    if (world.my_pe() == 0) testing::internal::CaptureStderr();
    const ep::Group group(
        world.team(),
        {.max_tokens = 64, .hidden = 2048, .top_k = 2, .experts = 8, .low_latency_max_tokens = 64});
    if (world.my_pe() == 0) text = testing::internal::GetCapturedStderr();
    barrier(world.team());
  });
  return text;
}

TEST_F(Verbs, GroupsReportQueuesThatAreShorterThanTheirCalls) {
  Settings settings = verbs_settings();
  settings.symmetric_size = std::size_t{64} << 20;
  settings.node_size = 1;
  EXPECT_EQ(reported_by_group(settings), "") << "the defaults suffice";
  settings.verbs_depth = 16;
  const std::string few = reported_by_group(settings);
  for (const char* call : {"normal mode has", "low_latency_combine has"})
    expect_parts(few, {std::string("ep::Group of 2 ranks: transport verbs: ") + call});
  expect_parts(few, {"send queues have 16, so it waits for room: set SHOAL_VERBS_DEPTH="});
  settings.verbs_depth = 512;
  settings.network_depth = 64;
  settings.network_chunk = 4096;
  expect_parts(reported_by_group(settings), {"SHOAL_NETWORK_DEPTH=64 allows fewer"});
}

TEST_F(Verbs, AQuotaThatIsUsedUpIsNamed) {
  emulate("MAX_QP", "2");
  expect_error(Code::unsupported, "Setting: SHOAL_VERBS_QUEUE_PAIRS",
               [] { run_threads(4, verbs_settings(), check_rma); });
}

}  // namespace
}  // namespace shoal::test
