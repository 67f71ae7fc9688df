// SPDX-License-Identifier: Apache-2.0
// Queue pairs that a world makes for kernels (SHOAL_GDA), on the emulated NIC and a fake CUDA
// driver: threads of a PE share them as warps would, alongside the CPU transport of the same world.
// @traits polls
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include <algorithm>
#include <thread>
#include <vector>

#include "checks/world/operations.hpp"
#include "fabric/fabric.hpp"
#include "shoal/collective.hpp"
#include "shoal/device/detail/gda/operations.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/expect_error.hpp"
#include "support/gda/host_platform.hpp"
#include "support/world/verbs.hpp"
#include "team/team_state.hpp"
#include "transport/device_queues.hpp"
#include "world/state.hpp"

namespace shoal::test {
namespace {

namespace gda = device::gda;
using KernelQueues = WithVerbs;
using transport::DeviceQueues;

Settings gda_settings(const std::string& gda = "on") {
  Settings settings = verbs_settings();
  settings.heap = "cuda";
  settings.symmetric_size = std::size_t{8} << 20;
  settings.node_size = 1;
  settings.transport_inside = "automatic";
  add_kernel_queues(settings);
  settings.gda = gda;
  return settings;
}

const DeviceQueues* queues_of(World& world, Pe pe) {
  return state_of(world).fabric().device_queues(pe);
}

/// The queues to one PE as its users share them.
struct Shared {
  explicit Shared(const DeviceQueues::Route& route, Pe pe) : words(route.queues.size()) {
    for (std::size_t i = 0; i < route.queues.size(); ++i) {
      gda::Queue queue;
      queue.sends = route.queues[i].sends;
      queue.completions = route.queues[i].completions;
      queue.shared = &words[i];
      queue.ordering = gda::Ordering::adaptive;
      queue.largest_message = route.largest_message;
      queue.sink = route.sink;
      queue.peer = static_cast<std::uint32_t>(pe);
      queues.push_back(queue);
    }
  }
  std::vector<gda::Shared> words;
  std::vector<gda::Queue> queues;
};

constexpr std::size_t kWords = 500;
constexpr int kThreads = 4;

/// Work of one thread in place of a warp: rounds of puts with a signal, to its own rows.
void put_rows(World& world, const DeviceQueues::Route& route, Shared& shared, int thread,
              std::uint64_t* rows, std::uint64_t* source, std::uint64_t* flags, int rounds) {
  const gda::Queue& queue = shared.queues[static_cast<std::size_t>(thread) % shared.queues.size()];
  gda::HostPlatform platform;
  const auto offset = [&](const std::uint64_t* word) { return world.heap().offset_of(word); };
  const auto row = static_cast<std::size_t>(thread) * kWords;
  for (int round = 1; round <= rounds; ++round) {
    for (std::size_t i = 0; i < kWords; ++i)
      source[row + i] = static_cast<std::uint64_t>(round) * 10000 + row + i;
    const std::uint64_t deadline = platform.now() + 20'000'000'000;
    const gda::Source from{nullptr,
                           {reinterpret_cast<std::uintptr_t>(source + row), route.local_key}};
    const mlx5::Memory to{route.heap.address + offset(rows + row), route.heap.key};
    const gda::Signal signal{{route.heap.address + offset(flags + thread), route.heap.key},
                             static_cast<std::uint64_t>(round),
                             gda::SignalKind::set};
    std::uint64_t ticket = 0;
    ASSERT_EQ(gda::put_signal(queue, from, to, kWords * 8, signal, deadline, platform, ticket),
              gda::Outcome::ok);
    ASSERT_EQ(gda::wait(queue, ticket, deadline, platform), gda::Outcome::ok)
        << static_cast<int>(gda::failure_of(queue, platform).syndrome);
  }
}

void check_rows(World& world) {
  constexpr int kRounds = 30;
  const Pe right = (world.my_pe() + 1) % world.n_pes();
  auto rows = world.heap().allocate<std::uint64_t>(kThreads * kWords);
  auto source = world.heap().allocate<std::uint64_t>(kThreads * kWords);
  auto flags = world.heap().allocate<std::uint64_t>(kThreads + 1);
  const DeviceQueues* const queues = queues_of(world, right);
  ASSERT_NE(queues, nullptr);
  const DeviceQueues::Route route = queues->route(right);
  ASSERT_EQ(route.obstacle, "");
  ASSERT_EQ(route.queues.size(), 2U);
  EXPECT_GE(route.heap_bytes, world.heap().offset_of(flags.data()) + 8);
  EXPECT_NE(route.queues[0].sends.number, route.queues[1].sends.number);
  for (const DeviceQueues::Queue& queue : route.queues)
    EXPECT_EQ(std::uint32_t{1} << queue.completions.log_size, queue.sends.blocks);
  Shared shared(route, right);
  barrier(world.team());
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      put_rows(world, route, shared, i, rows.data(), source.data(), flags.data(), kRounds);
    });
  // The same world's CPU transport meanwhile.
  for (int i = 0; i < 20; ++i) world.signal(flags.on(right)[kThreads], SignalOp::add, 1);
  for (std::thread& thread : threads) thread.join();
  world.quiet();
  barrier(world.team());
  for (int thread = 0; thread < kThreads; ++thread) EXPECT_EQ(flags[thread], kRounds);
  EXPECT_EQ(flags[kThreads], 20U);
  for (std::size_t i = 0; i < kThreads * kWords; ++i) ASSERT_EQ(rows[i], kRounds * 10000 + i);
  barrier(world.team());
}

TEST_F(KernelQueues, CarryPutsAndSignalsAlongsideTheTransport) {
  {
    const FakeCuda fake({.gpus = 3});
    run_threads(3, gda_settings(), check_rows);
  }
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST_F(KernelQueues, NameTheMemoryThatAGpuMustMap) {
  const FakeCuda fake({.gpus = 2});
  run_threads(2, gda_settings(), [](World& world) {
    const DeviceQueues* const queues = queues_of(world, 1 - world.my_pe());
    ASSERT_NE(queues, nullptr);
    const auto ranges = queues->memory();
    const auto within = [&](const void* memory) {
      const auto* const at = static_cast<const std::byte*>(memory);
      return std::ranges::count_if(ranges, [&](const DeviceQueues::Range& range) {
        return at >= range.start && at < range.start + range.bytes;
      });
    };
    for (const DeviceQueues::Queue& queue : queues->route(1 - world.my_pe()).queues) {
      EXPECT_EQ(within(queue.sends.ring), 1);
      EXPECT_EQ(within(queue.sends.ring + queue.sends.blocks * mlx5::kBlockSegments - 1), 1);
      EXPECT_EQ(within(queue.sends.record), 1);
      EXPECT_EQ(within(queue.sends.doorbell), 1);
      EXPECT_EQ(within(queue.completions.entries), 1);
    }
    EXPECT_EQ(queues_of(world, world.my_pe()), nullptr);
    barrier(world.team());
  });
}

TEST_F(KernelQueues, AreInReports) {
  const FakeCuda fake({.gpus = 2});
  run_threads(2, gda_settings(), [](World& world) {
    const std::string found = world.describe_transport(1 - world.my_pe());
    expect_parts(found, {"; 2 queue pairs for kernels on "});
    // The report that shoal-info --connectivity prints.
    const ConnectivityReport report = world.connectivity();
    int named = 0;
    for (const PairConnectivity& pair : report.heap_pairs)
      for (const TransportVerdict& verdict : pair.transports)
        if (verdict.chosen &&
            verdict.why.find("2 queue pairs for kernels on ") != std::string::npos)
          ++named;
    EXPECT_EQ(named, 1) << "that of PE 0 and PE 1";
    barrier(world.team());
  });
}

TEST_F(KernelQueues, AreFourForEachPeerByDefault) {
  const FakeCuda fake({.gpus = 2});
  Settings settings = gda_settings();
  settings.gda_queue_pairs = 0;
  run_threads(2, settings, [](World& world) {
    const std::string found = world.describe_transport(1 - world.my_pe());
    expect_parts(found, {"; 4 queue pairs for kernels on "});
    barrier(world.team());
  });
}

TEST_F(KernelQueues, AreLeftOutWhereTheyCannotBeMade) {
  const auto expect = [](const Settings& settings, const std::string& why) {
    const FakeCuda fake({.gpus = 2});
    run_threads(2, settings, [&](World& world) {
      const DeviceQueues* const queues = queues_of(world, 1 - world.my_pe());
      ASSERT_EQ(queues == nullptr, why.empty());
      if (queues != nullptr) {
        expect_parts(queues->route(1 - world.my_pe()).obstacle, {why});
        EXPECT_TRUE(queues->route(1 - world.my_pe()).queues.empty());
      }
      auto word = world.heap().allocate<std::uint64_t>(1);
      world.signal(word.on(1 - world.my_pe()), SignalOp::add, 5);  // the world works
      world.quiet();
      barrier(world.team());
      EXPECT_EQ(*word.data(), 5U);
      barrier(world.team());
    });
  };
  expect(gda_settings("off"), "");
  Settings settings = gda_settings("automatic");
  settings.verbs_interface = "verbs";
  expect(settings, "SHOAL_VERBS_INTERFACE is verbs, allowed with SHOAL_GDA: devx");
  settings = gda_settings("automatic");
  settings.verbs_gpu_memory = "off";
  expect(settings, "through host memory: SHOAL_VERBS_GPU_MEMORY is off");
}

TEST_F(KernelQueues, AreAnErrorWhereTheSettingAsksForThem) {
  const FakeCuda fake({.gpus = 2});
  Settings settings = gda_settings("on");
  settings.verbs_interface = "verbs";
  settings.transport_between = "verbs,staged";
  expect_error(Code::unsupported, "allowed with SHOAL_GDA: devx",
               [&] { run_threads(2, settings, [](World&) {}); });
}

}  // namespace
}  // namespace shoal::test

#endif
