// SPDX-License-Identifier: Apache-2.0
// World::gda on the emulated NIC and a fake CUDA driver, whose GPU memory the test reads: threads
// in place of blocks run the operations that kernels run (gda/path.hpp), on the same description.
// @traits polls
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include <array>
#include <ostream>
#include <thread>
#include <vector>

#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"
#include "shoal/cuda.hpp"
#include "shoal/device/detail/gda/path.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/gda/host_platform.hpp"
#include "support/world/verbs.hpp"

namespace shoal::test {
namespace {

namespace gda = device::gda;

struct Tier {
  const char* ordering;
  const char* loss;
};

void PrintTo(const Tier& tier, std::ostream* out) {
  *out << tier.ordering << (*tier.loss != '\0' ? "WithLoss" : "");
}

class WorldGda : public WithVerbs, public testing::WithParamInterface<Tier> {
 protected:
  void SetUp() override {
    WithVerbs::SetUp();
    if (IsSkipped()) return;
    emulate("ORDERING", GetParam().ordering);
    if (*GetParam().loss != '\0') emulate("LOSS", GetParam().loss);
  }
};

Settings gda_settings(const std::string& handle) {
  Settings settings = verbs_settings();
  settings.heap = "cuda";
  settings.cuda_handle = handle;
  settings.symmetric_size = std::size_t{8} << 20;
  settings.node_size = 1;
  settings.transport_inside = "automatic";
  add_kernel_queues(settings);
  return settings;
}

constexpr std::size_t kWords = 300, kStrided = 7;
constexpr int kThreads = 3, kRounds = 12;

/// Memory of one thread: words that puts fill, of strided puts, of values, and its flag.
struct Area {
  std::uint64_t row[kWords];
  std::uint64_t strided[2 * kStrided];
  std::uint64_t value, flag, last;
};

std::uint64_t offset_of(World& world, const void* at) {
  return world.heap().offset_of(static_cast<const std::byte*>(at));
}

/// Every round: values and puts without a signal, then a put with a signal, then a signal alone.
void post_rounds(World& world, const gda::Routes& routes, Pe to, std::uint32_t thread, Area& target,
                 Area& source) {
  const gda::Route& route = routes.by_pe[to];
  gda::HostPlatform platform;
  const auto at = [&](const void* address) { return offset_of(world, address); };
  const auto expect = [](const gda::Ending& ending) {
    ASSERT_EQ(ending.outcome, gda::Outcome::ok);
  };
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    for (std::size_t i = 0; i < kWords; ++i) source.row[i] = round * 1000 + thread * 100 + i;
    for (std::size_t i = 0; i < kStrided; ++i) source.strided[i] = round + i;
    expect(gda::put_value(routes, route, thread, at(&target.value), round, 8, platform));
    expect(gda::put_strided(routes, route, thread, {at(target.strided), source.strided, 8},
                            {16, 8, 0, 1, kStrided}, platform));
    // A source of few bytes may lie anywhere.
    const std::uint64_t small = round * 7;
    expect(gda::put(routes, route, thread, {at(&target.last), &small, 8}, nullptr, platform));
    const gda::Flag flag{at(&target.flag), round};
    expect(gda::put(routes, route, thread, {at(target.row), source.row, sizeof source.row}, &flag,
                    platform));
  }
  expect(gda::signal(routes, route, thread, {at(&target.flag), kRounds + 1}, platform));
  expect(gda::drain_all(routes, platform));
}

/// Checks the data at the target as soon as the flag of a round has arrived.
void watch_rounds(const volatile Area& area, std::uint32_t thread) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::uint64_t flag = 0;
  while (flag != kRounds + 1) {
    flag = area.flag;
    std::atomic_thread_fence(std::memory_order_acquire);
    ASSERT_GE(area.value, std::min<std::uint64_t>(flag, kRounds));
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "flag " << flag;
    std::this_thread::yield();
  }
  for (std::size_t i = 0; i < kWords; ++i)
    ASSERT_EQ(area.row[i], kRounds * 1000 + thread * 100 + i);
  for (std::size_t i = 0; i < kStrided; ++i) ASSERT_EQ(area.strided[2 * i], kRounds + i);
  EXPECT_EQ(area.last, kRounds * 7U);
}

void check_rounds(World& world) {
  const device::World view = cuda::device_world(world);
  ASSERT_NE(view.gda, nullptr) << world.describe_transport(1 - world.my_pe());
  const gda::Routes& routes = *view.gda;
  ASSERT_EQ(routes.n_pes, static_cast<std::uint64_t>(world.n_pes()));
  EXPECT_EQ(routes.heap, view.heap);
  EXPECT_EQ(routes.by_pe[world.my_pe()].n_queues, 0U);
  const Pe right = (world.my_pe() + 1) % world.n_pes();
  auto target = world.heap().allocate<Area>(kThreads);
  auto source = world.heap().allocate<Area>(kThreads);
  barrier(world.team());
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] { post_rounds(world, routes, right, i, target[i], source[i]); });
    threads.emplace_back([&, i] { watch_rounds(target[i], i); });
  }
  for (std::thread& thread : threads) thread.join();
  barrier(world.team());
}

TEST_P(WorldGda, CarriesTheOperationsOfKernels) {
  {
    const FakeCuda fake({.gpus = 2});
    run_threads(2, gda_settings("automatic"), check_rounds);
  }
  EXPECT_EQ(FakeCuda::leaks(), "");
}

/// NICs have no access to GPU memory here.
TEST_P(WorldGda, ReachesHeapsInPinnedMemory) {
  {
    const FakeCuda fake({.gpus = 2, .gpu_direct = false, .dma_buf = false});
    run_threads(2, gda_settings("pinned"), check_rounds);
  }
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST_P(WorldGda, LeavesWhatNicsDoNotReachToTheProxy) {
  const FakeCuda fake({.gpus = 2});
  run_threads(2, gda_settings("automatic"), [](World& world) {
    const gda::Routes& routes = *cuda::device_world(world).gda;
    const gda::Route& route = routes.by_pe[1 - world.my_pe()];
    const Pe other = 1 - world.my_pe();
    EXPECT_EQ(gda::route_to(routes, other, 0, route.bytes), &route);
    EXPECT_EQ(gda::route_to(routes, other, 1, route.bytes), nullptr);
    EXPECT_EQ(gda::route_to(routes, other, ~std::uint64_t{0}, 2), nullptr);
    EXPECT_EQ(gda::route_to(routes, world.my_pe(), 0, 8), nullptr);
    std::array<std::byte, 64> elsewhere{};
    EXPECT_TRUE(gda::can_send(routes, route, elsewhere.data(), gda::kInlineBytes));
    EXPECT_FALSE(gda::can_send(routes, route, elsewhere.data(), gda::kInlineBytes + 1));
    EXPECT_TRUE(gda::can_send(routes, route, routes.heap, route.bytes));
    EXPECT_FALSE(gda::can_send(routes, route, routes.heap + 1, route.bytes));
    barrier(world.team());
  });
}

/// A target that the peer has not registered: the queue ends, and later calls say why. With loss
/// the peer's refusal may be lost, once in fifty runs; its queue has ended then and answers no
/// repetition. Other worlds try again.
TEST_P(WorldGda, ReportsTheQueueThatEnded) {
  const FakeCuda fake({.gpus = 2});
  const bool loses = *GetParam().loss != '\0';
  bool lost = true;
  const auto run_once = [&](World& world) {
    const gda::Routes& routes = *cuda::device_world(world).gda;
    gda::HostPlatform platform;
    gda::Route route = routes.by_pe[1 - world.my_pe()];
    route.heap.key ^= 0x5500;
    barrier(world.team());
    const std::uint64_t value = 1;
    // Only one side posts: a refused access ends the queue pair of both.
    for (int i = 0; i < 2 && world.my_pe() == 0; ++i) {
      const gda::Ending ending = gda::put(routes, route, 0, {0, &value, 8}, nullptr, platform);
      EXPECT_EQ(ending.outcome, gda::Outcome::failed);
      const gda::Failure failure = gda::failure_of(*ending.queue, platform);
      EXPECT_EQ(failure.cause, gda::Cause::nic);
      lost = loses && failure.syndrome == mlx5::Syndrome::retry_exceeded;
      if (!lost) EXPECT_EQ(failure.syndrome, mlx5::Syndrome::remote_access);
      EXPECT_EQ(failure.peer, static_cast<std::uint32_t>(1 - world.my_pe()));
      EXPECT_EQ(failure.queue_pair, route.queues[0].sends.number);
    }
    // The other queue works.
    auto word = world.heap().allocate<std::uint64_t>(1);
    barrier(world.team());
    const gda::Ending ending =
        gda::put(routes, routes.by_pe[1 - world.my_pe()], 1,
                 {offset_of(world, word.data()), &value, 8}, nullptr, platform);
    EXPECT_EQ(ending.outcome, gda::Outcome::ok);
    barrier(world.team());
    EXPECT_EQ(word[0], 1U);
    barrier(world.team());
  };
  for (int tries = 0; lost && tries < 5; ++tries)
    run_threads(2, gda_settings("automatic"), run_once);
  EXPECT_FALSE(lost);
}

/// Requests whose doorbell the NIC never sees end at their deadline.
TEST_P(WorldGda, EndsAtItsDeadlineWhereTheDoorbellIsLost) {
  const FakeCuda fake({.gpus = 2});
  run_threads(2, gda_settings("automatic"), [](World& world) {
    gda::Routes routes = *cuda::device_world(world).gda;
    routes.timeout_ns = 100'000'000;
    gda::HostPlatform platform;
    gda::Route route = routes.by_pe[1 - world.my_pe()];
    gda::Queue lost = route.queues[0];
    std::uint32_t record = 0;
    std::uint64_t doorbell = 0;
    lost.sends.record = &record;
    lost.sends.doorbell = &doorbell;
    route.queues = &lost;
    route.n_queues = 1;
    const std::uint64_t value = 1;
    const gda::Ending ending = gda::put(routes, route, 0, {0, &value, 8}, nullptr, platform);
    EXPECT_EQ(ending.outcome, gda::Outcome::timeout);
    EXPECT_EQ(ending.queue, &lost);
    EXPECT_NE(doorbell, 0U);
    barrier(world.team());
  });
}

INSTANTIATE_TEST_SUITE_P(Tiers, WorldGda,
                         testing::Values(Tier{"strict", ""}, Tier{"adaptive", ""},
                                         Tier{"unordered", ""}, Tier{"unordered", "0.02"}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace shoal::test

#endif
