// SPDX-License-Identifier: Apache-2.0
// The link of the NIC on a GPU (emulator/gpu/): its rate, and what is under way at the same time.
#include <algorithm>
#include <string>

#include "unit/emulator/gpu_timed.hpp"

namespace shoal::emulator::test {
namespace {

constexpr double kRate = 50;  // bytes per nanosecond

GpuShape shape_of(Ordering ordering, double rate) {
  GpuShape shape{.blocks = 256, .ordering = ordering, .bytes = std::size_t{8} << 20};
  shape.timing.byte_cost = static_cast<std::uint64_t>(65536 / rate);
  shape.jobs = 1024;
  shape.workers = 63;
  return shape;
}

class GpuNicRate : public ::testing::TestWithParam<Ordering> {};

// Steps of the dispatcher take microseconds, in which the link goes on.
TEST_P(GpuNicRate, OneQueuePairReachesTheThrottle) {
  for (const std::uint32_t bytes : {1U << 16, 1U << 17, 1U << 20}) {
    // In the strict tier a message waits for the stores of the one before it.
    if (GetParam() == Ordering::strict && bytes == 1U << 16) continue;
    const GpuShape shape = shape_of(GetParam(), kRate);
    GpuNics nics(shape);
    const double rate = TimedNic(nics, shape, bytes).rate((std::uint64_t{40} << 20) / bytes);
    EXPECT_GE(rate, 0.97 * kRate) << bytes;
    EXPECT_LE(rate, 1.03 * kRate) << bytes;
  }
}

// A dispatcher that is away for longer than usual.
TEST_P(GpuNicRate, SlowStepsCostNoRate) {
  const GpuShape shape = shape_of(GetParam(), kRate / 2);
  GpuNics nics(shape);
  NicCosts costs;
  costs.collective = 500;
  EXPECT_GE(TimedNic(nics, shape, 1U << 18, costs).rate(200), 0.97 * kRate / 2);
}

TEST_P(GpuNicRate, NothingIsEarly) {
  constexpr std::uint32_t kBytes = 60000;
  GpuShape shape{.ordering = GetParam()};
  shape.timing.byte_cost = 65536;  // 1 GB/s
  GpuNics nics(shape);
  std::fill(nics.a.memory.begin(), nics.a.memory.end(), 1U);
  RandomSteps steps(nics, 1);
  steps.run_until([] { return false; }, 200'000);  // an idle link saves a part of its time alone
  RandomClient client(steps);
  std::uint64_t ticket = 0;
  const std::uint64_t start = steps.clock;
  ASSERT_EQ(gda::put(nics.a.queue(), nics.a.from(0, false), nics.a.at_peer(0), kBytes, ~0ULL,
                     client, ticket),
            gda::Outcome::ok);
  std::uint64_t seen = 0, most_early = 0;
  ASSERT_TRUE(steps.run_until([&] {
    seen = 0;
    for (std::size_t i = 0; i < kBytes; i += 8) seen += nics.b.word(i) == 1 ? 8 : 0;
    const std::uint64_t due = steps.clock - start + shape.timing.burst;
    most_early = std::max(most_early, seen > due ? seen - due : 0);
    return seen == kBytes;
  }));
  EXPECT_LE(most_early, gpu::kChunkBytes);  // the job that is on the link
  EXPECT_NEAR(static_cast<double>(steps.clock - start), kBytes, 20'000);
}

// Messages that the dispatcher moves itself; it may move a window of them at once.
TEST_P(GpuNicRate, SmallMessagesTakeTheLink) {
  constexpr std::uint32_t kBytes = 256, kMessages = 256;
  GpuShape shape{.blocks = 512, .ordering = GetParam()};
  shape.timing.byte_cost = 20 * 65536;  // 0.05 GB/s
  GpuNics nics(shape);
  RandomSteps steps(nics, 1);
  RandomClient client(steps);
  std::uint64_t ticket = 0;
  const std::uint64_t start = steps.clock;
  for (std::uint32_t i = 0; i < kMessages; ++i)
    ASSERT_EQ(gda::put(nics.a.queue(), nics.a.from(0, false), nics.a.at_peer(0), kBytes, ~0ULL,
                       client, ticket),
              gda::Outcome::ok);
  ASSERT_EQ(gda::wait(nics.a.queue(), ticket, ~0ULL, client), gda::Outcome::ok);
  const std::uint64_t window = std::uint64_t{gpu::kWindow} * kBytes * 20;
  EXPECT_GE(steps.clock - start + window + shape.timing.ahead + shape.timing.burst,
            std::uint64_t{kMessages} * kBytes * 20);
}

INSTANTIATE_TEST_SUITE_P(Tiers, GpuNicRate, ::testing::ValuesIn(kOrderings),
                         [](const auto& made) { return kTierNames[static_cast<int>(made.param)]; });

// Large and small writes in turns: no byte of a write is seen before all bytes of those before it,
// although their jobs are handed out together.
TEST(GpuNicStrict, BytesLandInTheOrderOfTheirWrites) {
  constexpr std::uint32_t kWrites = 24, kStride = 32768;
  const auto bytes_of = [](std::uint32_t i) { return i % 3 == 2 ? 8U : 20000U; };
  std::uint64_t together = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    GpuShape shape{.blocks = 256, .bytes = std::size_t{kWrites} * kStride};
    shape.timing.delay = seed % 2 * 500;
    GpuNics nics(shape);
    std::fill(nics.a.memory.begin(), nics.a.memory.end(), 1U);
    RequestWriter writer(nics.a.ring(), shape.blocks, GpuEnd::number(0));
    for (std::uint32_t i = 0; i < kWrites; ++i)
      write_op(writer,
               {.opcode = Opcode::write,
                .local = i * kStride,
                .remote = i * kStride,
                .bytes = bytes_of(i),
                .signalled = i + 1 == kWrites},
               {nics.a.address(), nics.b.address(), GpuEnd::key, GpuEnd::key, nics.a.bytes()});
    RandomSteps steps(nics, seed);
    nics.a.ring_doorbell(writer.posted());
    const auto landed = [&](std::uint32_t i) {  // 8 bytes of each chunk of 4 KiB
      std::uint32_t words = 0, all = 0;
      for (std::uint32_t at = 0; at < bytes_of(i); at += 4096, ++all)
        words += nics.b.word(i * kStride + at) == 1 ? 1 : 0;
      return std::pair(words, all);
    };
    std::uint32_t first_open = 0, early = 0;
    ASSERT_TRUE(steps.run_until([&] {
      for (; first_open < kWrites && landed(first_open).first == landed(first_open).second;)
        ++first_open;
      for (std::uint32_t i = first_open + 1; i < kWrites; ++i) early += landed(i).first;
      // A write of 20000 bytes has 3 jobs.
      together = std::max(
          together, nics.a.common.written - std::atomic_ref(nics.a.state().counters[0]).load());
      return nics.a.poll().has_value();
    }));
    EXPECT_EQ(early, 0u) << seed;
    EXPECT_EQ(first_open, kWrites) << seed;
  }
  EXPECT_GT(together, 6u);
}

// Jobs that wait for each other must not take all workers.
TEST(GpuNicStrict, ItsJobsAreBounded) {
  for (const Ordering ordering : {Ordering::strict, Ordering::adaptive}) {
    constexpr std::uint32_t kBytes = 1 << 18;
    GpuShape shape{.blocks = 64, .ordering = ordering, .bytes = 32 * kBytes};
    shape.jobs = 1024;
    GpuNics nics(shape);
    RequestWriter writer(nics.a.ring(), shape.blocks, GpuEnd::number(0));
    for (std::uint32_t i = 0; i < 32; ++i)
      write_op(
          writer,
          {.opcode = Opcode::write, .local = i * kBytes, .remote = i * kBytes, .bytes = kBytes},
          {nics.a.address(), nics.b.address(), GpuEnd::key, GpuEnd::key, nics.a.bytes()});
    nics.a.ring_doorbell(writer.posted());
    std::uint64_t clock = 1;
    EnginePlatform platform;
    platform.clock = &clock;
    nics.a.start(platform);
    for (int i = 0; i < 20; ++i, clock += 10'000) nics.a.dispatchers[0]->step();
    EXPECT_EQ(nics.a.common.written <= gpu::kStrictJobs, ordering == Ordering::strict);
    int done = 0;
    for (int i = 0; i < 100 && done < 32; ++i, clock += 10'000) {
      while (nics.a.workers[0].step() == gpu::WorkerState::worked) {
      }
      nics.a.dispatchers[0]->step();
      while (nics.a.poll().has_value()) ++done;
    }
    EXPECT_EQ(done, 32);
  }
}

}  // namespace
}  // namespace shoal::emulator::test
