// SPDX-License-Identifier: Apache-2.0
// The NIC on a GPU (emulator/gpu/) with several dispatchers, each of which has a part of the queue
// pairs: they share the link, the workers and the ring of jobs. By steps in random orders and by
// threads.
#include "unit/emulator/gpu_nic.hpp"
#include "unit/emulator/gpu_outcomes.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "support/rounds.hpp"

namespace shoal::emulator::test {
namespace {

constexpr std::size_t kPairs = 5, kWrites = 12, kStride = 32768;

class GpuNicDispatchers : public ::testing::TestWithParam<Ordering> {};

/// Writes of several sizes on each queue pair, an atomic behind each, to one word for all.
void post_all(GpuNics& nics, std::uint32_t blocks) {
  constexpr std::uint32_t kSizes[] = {20000, 200, 8, 9000};
  for (std::size_t pair = 0; pair < kPairs; ++pair) {
    RequestWriter writer(nics.a.ring(pair), blocks, GpuEnd::number(pair));
    const Bases bases{nics.a.address(), nics.b.address(), GpuEnd::key, GpuEnd::key, nics.a.bytes()};
    for (std::size_t i = 0; i < kWrites; ++i) {
      const std::size_t at = (1 + pair * kWrites + i) * kStride;
      write_op(writer, {.opcode = Opcode::write, .local = at, .remote = at, .bytes = kSizes[i % 4]},
               bases);
      write_op(writer,
               {.opcode = Opcode::fetch_add,
                .local = 8 * (1 + pair),
                .bytes = 8,
                .operands = {.opcode = Opcode::fetch_add, .size = 8, .swap_or_add = 1}},
               bases);
    }
    nics.a.ring_doorbell(writer.posted(), pair);
  }
}

TEST_P(GpuNicDispatchers, ServeTheirQueuePairs) {
  int slices = 0;
  const auto rounds = shoal::test::rounds<std::uint64_t>(60, 8);
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    GpuShape shape{.blocks = 256,
                   .ordering = GetParam(),
                   .bytes = (1 + kPairs * kWrites) * kStride,
                   .dispatchers = static_cast<std::uint32_t>(2 + seed % 4)};
    shape.jobs = seed % 3 == 0 ? 2 : 64;
    shape.timing.delay = seed % 2 * 500;
    shape.timing.byte_cost = seed % 4 < 2 ? 0 : 65536;  // 1 GB/s
    shape.timing.slice = seed % 5 == 0 ? 0 : 150'000;
    GpuNics nics(shape, kPairs);
    std::iota(nics.a.memory.begin() + 8, nics.a.memory.end(), 1U);
    post_all(nics, shape.blocks);
    RandomSteps steps(nics, seed);
    std::size_t complete = 0;
    ASSERT_TRUE(steps.run_until([&] {
      for (std::size_t pair = 0; pair < kPairs; ++pair)
        while (const auto seen = nics.a.poll(pair)) {
          EXPECT_EQ(seen->syndrome, Syndrome::none) << seed;
          ++complete;
        }
      return complete == kPairs * 2 * kWrites;
    })) << seed;
    EXPECT_EQ(nics.b.word(0), kPairs * kWrites) << seed;
    for (std::size_t pair = 0; pair < kPairs; ++pair)
      for (std::size_t i = 0; i < kWrites; ++i) {
        const std::size_t at = (1 + pair * kWrites + i) * kStride, bytes = i % 4 == 0 ? 20000 : 8;
        ASSERT_EQ(std::memcmp(nics.a.bytes() + at, nics.b.bytes() + at, bytes), 0)
            << seed << " " << pair << " " << i;
      }
    slices += steps.slices;
  }
  EXPECT_GT(slices, 0);
}

TEST_P(GpuNicDispatchers, ShareTheLink) {
  GpuShape shape{.blocks = 256, .ordering = GetParam(), .bytes = kPairs << 17, .dispatchers = 4};
  shape.timing.byte_cost = 1311 * 25;  // 2 GB/s
  shape.workers = 8;
  GpuNics nics(shape, kPairs);
  RandomSteps steps(nics, 1);
  constexpr std::uint32_t kBytes = 65536, kCount = 8;
  for (std::size_t pair = 0; pair < kPairs; ++pair) {
    RequestWriter writer(nics.a.ring(pair), shape.blocks, GpuEnd::number(pair));
    for (std::uint32_t i = 0; i < kCount; ++i)
      write_op(
          writer,
          {.opcode = Opcode::write, .local = pair << 17, .remote = pair << 17, .bytes = kBytes},
          {nics.a.address(), nics.b.address(), GpuEnd::key, GpuEnd::key, nics.a.bytes()});
    nics.a.ring_doorbell(writer.posted(), pair);
  }
  const std::uint64_t start = steps.clock;
  std::size_t complete = 0;
  ASSERT_TRUE(steps.run_until([&] {
    for (std::size_t pair = 0; pair < kPairs; ++pair)
      while (nics.a.poll(pair).has_value()) ++complete;
    return complete == kPairs * kCount;
  }));
  const double rate = double(kPairs * kCount * kBytes) / double(steps.clock - start);
  EXPECT_NEAR(rate, 2.0, 0.1);
}

TEST_P(GpuNicDispatchers, StopTogether) {
  GpuShape shape{.ordering = GetParam(), .dispatchers = 3};
  GpuNics nics(shape, kPairs);
  RandomSteps steps(nics, 1);
  RandomClient client(steps);
  std::uint64_t ticket = 0;
  ASSERT_EQ(gda::signal(nics.a.queue(4), {nics.a.at_peer(0), 1}, ~0ULL, client, ticket),
            gda::Outcome::ok);
  ASSERT_EQ(gda::wait(nics.a.queue(4), ticket, ~0ULL, client), gda::Outcome::ok);
  nics.a.control.stop = 1;
  ASSERT_TRUE(steps.run_until([&] { return steps.has_stopped; }, 10'000'000));
  EXPECT_EQ(nics.a.control.stopped, static_cast<std::uint64_t>(gpu::Stopped::by_owner));
  for (auto& worker : nics.a.workers) EXPECT_EQ(worker.step(), gpu::WorkerState::closed);
  EXPECT_EQ(nics.a.report(4).requests, 1u);
}

// Data and signals of each queue pair by a thread of its own; plain accesses, which ThreadSanitizer
// checks.
TEST_P(GpuNicDispatchers, ByThreads) {
  const auto laps = shoal::test::rounds<std::uint64_t>(100, 20);
  GpuShape shape{
      .ordering = GetParam(), .bytes = (1 + kPairs) * kStride, .jobs = 8, .dispatchers = 3};
  GpuNics nics(shape, kPairs);
  NicThreads threads(nics);
  std::vector<std::thread> clients;
  for (std::size_t pair = 0; pair < kPairs; ++pair)
    clients.emplace_back([&, pair] {
      gda::HostPlatform client;
      const std::uint64_t deadline = client.now() + 60'000'000'000;
      const gda::Queue queue = nics.a.queue(pair);
      const std::size_t data = (1 + pair) * kStride / 8, signal = 8 * (1 + pair);
      for (std::uint64_t lap = 1; lap <= laps; ++lap) {
        std::uint64_t ticket = 0;
        std::fill_n(nics.a.memory.begin() + static_cast<std::ptrdiff_t>(data), 2500, lap);
        ASSERT_EQ(gda::put_signal(queue, nics.a.from(8 * data, false), nics.a.at_peer(8 * data),
                                  20000, {nics.a.at_peer(signal), 1}, deadline, client, ticket),
                  gda::Outcome::ok);
        while (nics.b.word(signal) != lap) {
          ASSERT_LT(client.now(), deadline);
          std::this_thread::yield();
        }
        const auto first = nics.b.memory.begin() + static_cast<std::ptrdiff_t>(data);
        ASSERT_EQ(std::count(first, first + 2500, lap), 2500);
        ASSERT_EQ(gda::wait(queue, ticket, deadline, client), gda::Outcome::ok);
      }
    });
  for (std::thread& client : clients) client.join();
}

INSTANTIATE_TEST_SUITE_P(Tiers, GpuNicDispatchers, ::testing::ValuesIn(kOrderings),
                         [](const auto& made) { return kTierNames[static_cast<int>(made.param)]; });

}  // namespace
}  // namespace shoal::emulator::test
