// SPDX-License-Identifier: Apache-2.0
// The NIC on a GPU (emulator/gpu/) in memory of this process: what it makes of requests is what the
// engine makes of them, in all orderings, and clients of shared queues run on it.
// Its steps run in random orders; gpu_nic_threads_test.cpp runs it by threads.
#include "unit/emulator/gpu_nic.hpp"
#include "unit/emulator/gpu_outcomes.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>

#include "support/rounds.hpp"

namespace shoal::emulator::test {
namespace {

Outcome run_on_gpu(const std::vector<Op>& ops, std::size_t good, const GpuShape& shape,
                   std::uint64_t seed, int* slices = nullptr) {
  GpuNics nics(shape);
  std::iota(nics.a.memory.begin(), nics.a.memory.end(), 0x1122334455667788U);
  std::iota(nics.b.memory.begin(), nics.b.memory.end(), 0x99aabbccddeeff00U);
  RequestWriter writer(nics.a.ring(), shape.blocks, GpuEnd::number(0));
  for (const Op& op : ops)
    write_op(writer, op,
             {nics.a.address(), nics.b.address(), GpuEnd::key, GpuEnd::key, nics.a.bytes()});
  RandomSteps steps(nics, seed);
  nics.a.ring_doorbell(writer.posted());
  Outcome outcome;
  const std::size_t count = expected_completions(ops, good);
  steps.run_until([&] {
    while (const auto seen = nics.a.poll()) note(outcome, *seen);
    return outcome.completions.size() >= count;
  });
  for (int i = 0; i < 2000; ++i) steps.run();
  while (const auto seen = nics.a.poll()) note(outcome, *seen);
  if (slices != nullptr) *slices += steps.slices;
  outcome.local = nics.a.memory;
  outcome.remote = nics.b.memory;
  outcome.local_failed = nics.a.report().failed != 0;
  outcome.remote_failed = nics.b.report().failed != 0;
  return outcome;
}

class GpuNicOutcomes : public ::testing::TestWithParam<Ordering> {};

TEST_P(GpuNicOutcomes, AreThoseOfTheEngine) {
  for (std::uint64_t seed = 0; seed < shoal::test::rounds<std::uint64_t>(150, 12); ++seed) {
    std::mt19937_64 random(seed);
    const std::vector<Op> ops = random_ops(random, 1 + random() % 28);
    GpuShape shape{.blocks = 1024, .ordering = GetParam()};
    shape.timing.delay = random() % 3 * 1000;
    shape.timing.reorder = random() % 2 * 3000;
    shape.timing.byte_cost = random() % 2 * 1311;
    shape.timing.seed = seed;
    shape.jobs = seed % 5 == 0 ? 2 : 64;
    const Outcome engine = run_on_engine(ops, ops.size(), GetParam(), kAllAccess, kAllAccess);
    ASSERT_FALSE(engine.local_failed) << seed;
    const Outcome gpu = run_on_gpu(ops, ops.size(), shape, seed);
    expect_same(engine, gpu, "seed " + std::to_string(seed));
    if (HasFailure()) return;
  }
}

// A NIC whose kernel ends again and again is as one that goes on.
TEST_P(GpuNicOutcomes, SlicesChangeNothing) {
  const auto rounds = shoal::test::rounds<std::uint64_t>(100, 12);
  int slices = 0;
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    std::mt19937_64 random(seed);
    const std::vector<Op> ops = random_ops(random, 1 + random() % 28);
    GpuShape shape{.blocks = 1024, .ordering = GetParam()};
    shape.timing.delay = random() % 3 * 100'000;
    shape.timing.byte_cost = random() % 2 * 1'311'000;  // links that are busy across slices
    shape.timing.seed = seed;
    shape.timing.slice = 150'000;
    shape.jobs = seed % 5 == 0 ? 2 : 64;
    const Outcome engine = run_on_engine(ops, ops.size(), GetParam(), kAllAccess, kAllAccess);
    expect_same(engine, run_on_gpu(ops, ops.size(), shape, seed, &slices),
                "seed " + std::to_string(seed));
    if (HasFailure()) return;
  }
  EXPECT_GT(slices, static_cast<int>(rounds));
}

// The failed request has its syndrome, those after it are flushed, and both ends are in the error
// state where the peer has refused it.
TEST_P(GpuNicOutcomes, FaultsAreThoseOfTheEngine) {
  std::uint64_t seed = 0;
  for (const Fault& fault : faults()) {
    for (const bool signalled : {true, false}) {
      std::vector<Op> ops(3, Op{.opcode = Opcode::nop});
      ops[1].signalled = false;
      ops.push_back(fault.op);
      ops.back().signalled = signalled;
      if (ops.back().local == 0) ops.back().local = 64;
      if (ops.back().remote == 0) ops.back().remote = 128;
      // What comes after it has no effect that could be early.
      for (int i = 0; i < 40; ++i) ops.push_back({.opcode = Opcode::nop, .signalled = i % 2 == 0});
      GpuShape shape{
          .blocks = 1024, .ordering = GetParam(), .access = fault.access, .granted = fault.granted};
      shape.timing.delay = seed % 3 * 700;
      const Outcome engine = run_on_engine(ops, 3, GetParam(), fault.access, fault.granted);
      ASSERT_TRUE(engine.local_failed) << fault.name;
      expect_same(engine, run_on_gpu(ops, 3, shape, ++seed), fault.name);
    }
  }
}

TEST_P(GpuNicOutcomes, AnInlineRequestThatLacksASegmentIsRefused) {
  GpuShape shape{.ordering = GetParam()};
  GpuNics nics(shape);
  RequestWriter writer(nics.a.ring(), shape.blocks, GpuEnd::number(0));
  writer.start(Opcode::write, {.signalled = true}).remote(nics.b.address(), GpuEnd::key);
  const std::array<std::byte, 12> bytes{};
  writer.inline_data(bytes);
  writer.finish();
  // 40 bytes need three segments.
  store_be(nics.a.ring() + 32, std::uint32_t{40 | kInlineFlag});
  RandomSteps steps(nics, 1);
  nics.a.ring_doorbell(writer.posted());
  std::optional<Seen> seen;
  ASSERT_TRUE(steps.run_until([&] { return (seen = nics.a.poll()).has_value(); }));
  EXPECT_EQ(seen->syndrome, Syndrome::local_qp_operation);
}

TEST_P(GpuNicOutcomes, ARecordThatEndsWithinARequestIsRefused) {
  GpuShape shape{.ordering = GetParam()};
  GpuNics nics(shape);
  RequestWriter writer(nics.a.ring(), shape.blocks, GpuEnd::number(0));
  writer.start(Opcode::write, {.signalled = true}).remote(nics.b.address(), GpuEnd::key);
  const std::array<std::byte, 200> bytes{};
  writer.inline_data(bytes);
  writer.finish();
  RandomSteps steps(nics, 1);
  nics.a.ring_doorbell(static_cast<std::uint16_t>(writer.posted() - 1));
  std::optional<Seen> seen;
  ASSERT_TRUE(steps.run_until([&] { return (seen = nics.a.poll()).has_value(); }));
  EXPECT_EQ(seen->syndrome, Syndrome::local_qp_operation);
}

TEST_P(GpuNicOutcomes, InlineBytesWrapAtTheEndOfTheRing) {
  for (const std::uint32_t bytes : {200U, 900U}) {  // by the dispatcher, by workers
    GpuShape shape{.blocks = 32, .ordering = GetParam()};
    GpuNics nics(shape);
    std::iota(nics.a.memory.begin(), nics.a.memory.end(), 0x0102030405060708U);
    RequestWriter writer(nics.a.ring(), shape.blocks, GpuEnd::number(0));
    const Bases bases{nics.a.address(), nics.b.address(), GpuEnd::key, GpuEnd::key, nics.a.bytes()};
    RandomSteps steps(nics, 1);
    for (int i = 0; i < 30; ++i) write_op(writer, {.opcode = Opcode::nop}, bases);
    nics.a.ring_doorbell(writer.posted());
    for (int i = 0; i < 30; ++i)
      ASSERT_TRUE(steps.run_until([&] { return nics.a.poll().has_value(); }));
    write_op(writer, {.opcode = Opcode::write, .bytes = bytes, .is_inline = true}, bases);
    nics.a.ring_doorbell(writer.posted());
    std::optional<Seen> seen;
    ASSERT_TRUE(steps.run_until([&] { return (seen = nics.a.poll()).has_value(); }));
    EXPECT_EQ(seen->syndrome, Syndrome::none);
    EXPECT_EQ(std::memcmp(nics.a.bytes(), nics.b.bytes(), bytes), 0) << bytes;
    EXPECT_EQ(nics.b.bytes()[bytes], std::byte{0});
  }
}

// Blocks until the client has done what it posted: indices, ring and entries wrap many times.
TEST_P(GpuNicOutcomes, RingsAndIndicesWrap) {
  GpuShape shape{.blocks = 16, .ordering = GetParam()};
  GpuNics nics(shape);
  RandomSteps steps(nics, 3);
  RandomClient client(steps);
  const gda::Queue queue = nics.a.queue();
  const std::uint64_t requests = shoal::test::rounds<std::uint64_t>(70000, 3000);
  std::uint64_t ticket = 0;
  for (std::uint64_t i = 0; i < requests; ++i)
    ASSERT_EQ(gda::signal(queue, {nics.a.at_peer(0), 1}, ~0ULL, client, ticket), gda::Outcome::ok);
  ASSERT_EQ(gda::quiet(queue, ~0ULL, client), gda::Outcome::ok);
  EXPECT_EQ(nics.b.word(0), requests);
}

TEST_P(GpuNicOutcomes, AFullWindowOfLargeMessagesInPieces) {
  GpuShape shape{.blocks = 256, .ordering = GetParam(), .bytes = 64 * 40000};
  shape.jobs = 8;
  shape.timing.reorder = 5000;
  GpuNics nics(shape);
  std::iota(nics.a.memory.begin(), nics.a.memory.end(), 1U);
  RandomSteps steps(nics, 5);
  RandomClient client(steps);
  const gda::Queue queue = nics.a.queue();
  std::uint64_t ticket = 0;
  for (std::size_t i = 0; i < 60; ++i)
    ASSERT_EQ(gda::put(queue, nics.a.from(i * 40000 + i), nics.a.at_peer(i * 40000 + 3 * i),
                       40000 - 200, ~0ULL, client, ticket),
              gda::Outcome::ok);
  ASSERT_EQ(gda::wait(queue, ticket, ~0ULL, client), gda::Outcome::ok);
  for (std::size_t i = 0; i < 60; ++i)
    ASSERT_EQ(std::memcmp(nics.a.bytes() + i * 40000 + i, nics.b.bytes() + i * 40000 + 3 * i,
                          40000 - 200),
              0)
        << i;
}

INSTANTIATE_TEST_SUITE_P(Tiers, GpuNicOutcomes, ::testing::ValuesIn(kOrderings),
                         [](const auto& made) { return kTierNames[static_cast<int>(made.param)]; });

/// Puts `laps` times data and then a flag, by a put or by an add. How often the flag of a lap was
/// seen before the data.
int early_flags(Ordering ordering, bool by_add, std::uint32_t bytes) {
  int early = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    GpuShape shape{.ordering = ordering};
    shape.timing.reorder = 4000;
    shape.timing.delay = 500;
    shape.timing.seed = seed;
    GpuNics nics(shape);
    std::fill_n(nics.a.memory.begin(), bytes / 8, 1);
    nics.a.memory[4096] = 1;
    RandomSteps steps(nics, seed);
    RandomClient client(steps);
    const gda::Queue queue = nics.a.queue();
    std::uint64_t ticket = 0;
    EXPECT_EQ(
        gda::put(queue, nics.a.from(0, false), nics.a.at_peer(0), bytes, ~0ULL, client, ticket),
        gda::Outcome::ok);
    const std::size_t flag = 4096 * 8;
    if (by_add)
      EXPECT_EQ(gda::signal(queue, {nics.a.at_peer(flag), 1}, ~0ULL, client, ticket),
                gda::Outcome::ok);
    else
      EXPECT_EQ(gda::put(queue, nics.a.from(flag), nics.a.at_peer(flag), 8, ~0ULL, client, ticket),
                gda::Outcome::ok);
    EXPECT_TRUE(steps.run_until([&] { return nics.b.word(flag) == 1; }));
    bool complete = true;
    for (std::size_t i = 0; i < bytes; i += 8) complete = complete && nics.b.word(i) == 1;
    early += complete ? 0 : 1;
  }
  return early;
}

TEST(GpuNicOrder, WritesOvertakeUnlessTheQueueIsStrict) {
  for (const std::uint32_t bytes : {8U, 24000U}) {
    EXPECT_EQ(early_flags(Ordering::strict, false, bytes), 0) << bytes;
    EXPECT_GT(early_flags(Ordering::adaptive, false, bytes), 0) << bytes;
    EXPECT_GT(early_flags(Ordering::unordered, false, bytes), 0) << bytes;
  }
}

TEST(GpuNicOrder, AtomicsComeAfterEarlierWritesInEveryTier) {
  for (const Ordering ordering : kOrderings)
    for (const std::uint32_t bytes : {8U, 24000U})
      EXPECT_EQ(early_flags(ordering, true, bytes), 0) << bytes;
}

/// Reads a block and writes its last word back. How often the write was made before the read.
int stale_writes(Ordering ordering, bool fenced) {
  int stale = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    GpuShape shape{.ordering = ordering};
    GpuNics nics(shape);
    std::fill_n(nics.b.memory.begin(), 2000, 7);
    RequestWriter writer(nics.a.ring(), shape.blocks, GpuEnd::number(0));
    const Bases bases{nics.a.address(), nics.b.address(), GpuEnd::key, GpuEnd::key, nics.a.bytes()};
    write_op(writer, {.opcode = Opcode::read, .bytes = 16000}, bases);
    write_op(writer, {.opcode = Opcode::write, .local = 15992, .remote = 32000, .fenced = fenced},
             bases);
    RandomSteps steps(nics, seed);
    nics.a.ring_doorbell(writer.posted());
    EXPECT_TRUE(steps.run_until([&] { return nics.a.poll().has_value(); }));
    EXPECT_TRUE(steps.run_until([&] { return nics.a.poll().has_value(); }));
    stale += nics.b.word(32000) == 7 ? 0 : 1;
  }
  return stale;
}

TEST(GpuNicOrder, FencedWritesWaitForReads) {
  for (const Ordering ordering : kOrderings) EXPECT_EQ(stale_writes(ordering, true), 0);
  EXPECT_GT(stale_writes(Ordering::unordered, false), 0);
}

/// From the doorbell until the peer has the signal of a put.
std::uint64_t signal_time(Ordering ordering, std::uint64_t delay) {
  GpuShape shape{.ordering = ordering};
  shape.timing.delay = delay;
  GpuNics nics(shape);
  RandomSteps steps(nics, 1);
  RandomClient client(steps);
  std::uint64_t ticket = 0;
  const std::uint64_t start = steps.clock;
  EXPECT_EQ(gda::put_signal(nics.a.queue(), nics.a.from(0), nics.a.at_peer(0), 8,
                            {nics.a.at_peer(64), 1}, ~0ULL, client, ticket),
            gda::Outcome::ok);
  EXPECT_TRUE(steps.run_until([&] { return nics.b.word(64) == 1; }));
  const std::uint64_t end = steps.clock;
  EXPECT_EQ(gda::wait(nics.a.queue(), ticket, ~0ULL, client), gda::Outcome::ok);
  EXPECT_GE(steps.clock - end + 3000, delay);  // the acknowledgement of the signal
  return end - start;
}

// Adaptive queues send an atomic when the write before it is acknowledged: a round trip more.
TEST(GpuNicOrder, SignalsTakeOneDelayOrThree) {
  constexpr std::uint64_t kDelay = 100'000, kSlack = 20'000;
  EXPECT_NEAR(signal_time(Ordering::strict, kDelay), kDelay, kSlack);
  EXPECT_NEAR(signal_time(Ordering::unordered, kDelay), kDelay, kSlack);
  EXPECT_NEAR(signal_time(Ordering::adaptive, kDelay), 3 * kDelay, kSlack);
}

TEST(GpuNicRate, MessagesTakeTheirTimeOnTheLink) {
  for (const std::uint32_t bytes : {8192U, 65536U}) {
    GpuShape shape{.blocks = 256, .ordering = Ordering::adaptive, .bytes = 1 << 17};
    shape.timing.byte_cost = 1311 * 25;  // 2 GB/s
    shape.workers = 8;
    GpuNics nics(shape);
    RandomSteps steps(nics, 1);
    RandomClient client(steps);
    const gda::Queue queue = nics.a.queue();
    const std::uint32_t count = (1 << 21) / bytes;
    const std::uint64_t start = steps.clock;
    std::uint64_t ticket = 0;
    for (std::uint32_t i = 0; i < count; ++i)
      ASSERT_EQ(
          gda::put(queue, nics.a.from(0, false), nics.a.at_peer(0), bytes, ~0ULL, client, ticket),
          gda::Outcome::ok);
    ASSERT_EQ(gda::wait(queue, ticket, ~0ULL, client), gda::Outcome::ok);
    const double rate = double(1 << 21) / double(steps.clock - start);
    EXPECT_NEAR(rate, 2.0, 0.1) << bytes;
  }
}

// Also at the end of a slice, when some dispatchers know them and others do not.
TEST(GpuNicPairs, MayComeBetweenSlices) {
  for (std::uint64_t seed = 0; seed < shoal::test::rounds<std::uint64_t>(60, 10); ++seed) {
    constexpr std::size_t kPairs = 6;
    GpuShape shape{.dispatchers = 3};
    shape.timing.slice = 150'000;
    GpuNics nics(shape, kPairs);
    nics.a.announce(1);
    RandomSteps steps(nics, seed);
    RandomClient client(steps);
    for (std::size_t pairs = 1; pairs <= kPairs; ++pairs) {
      nics.a.announce(pairs);
      std::uint64_t ticket = 0;
      const gda::Queue queue = nics.a.queue(pairs - 1);
      ASSERT_EQ(gda::signal(queue, {nics.a.at_peer(0), 1}, ~0ULL, client, ticket),
                gda::Outcome::ok);
      ASSERT_EQ(gda::wait(queue, ticket, ~0ULL, client), gda::Outcome::ok);
      const std::uint64_t until = steps.clock + (seed * 7 + pairs) * 10'000 % 160'000;
      steps.run_until([&] { return steps.clock >= until; });
    }
    EXPECT_EQ(nics.b.word(0), kPairs) << seed;
    EXPECT_GT(steps.slices, 0);
  }
}

TEST(GpuNicPairs, MayComeWhileTheNicRuns) {
  GpuNics nics({.dispatchers = 2}, 3);
  nics.a.announce(1);
  RandomSteps steps(nics, 1);
  RandomClient client(steps);
  std::uint64_t ticket = 0;
  const gda::Queue first = nics.a.queue(0), last = nics.a.queue(2);
  for (const gda::Queue* const queue : {&first, &last})
    ASSERT_EQ(gda::signal(*queue, {nics.a.at_peer(0), 1}, ~0ULL, client, ticket), gda::Outcome::ok);
  ASSERT_EQ(gda::wait(first, 1, ~0ULL, client), gda::Outcome::ok);
  EXPECT_EQ(gda::wait(last, 1, steps.clock + 1'000'000, client), gda::Outcome::timeout);
  EXPECT_EQ(nics.b.word(0), 1u);
  nics.a.announce(3);
  ASSERT_EQ(gda::wait(last, 1, ~0ULL, client), gda::Outcome::ok);
  EXPECT_EQ(nics.b.word(0), 2u);
}

TEST(GpuNicEnd, ItStopsWhenAskedWhenTheOwnerIsSilentAndAtItsEnd) {
  for (const auto why :
       {gpu::Stopped::by_owner, gpu::Stopped::owner_silent, gpu::Stopped::lifetime}) {
    GpuShape shape;
    shape.timing.owner_timeout = why == gpu::Stopped::owner_silent ? 1'000'000 : 0;
    shape.timing.lifetime = why == gpu::Stopped::lifetime ? 2'000'000 : 1'000'000'000'000;
    GpuNics nics(shape);
    RandomSteps steps(nics, 1);
    for (int i = 0; i < 20; ++i) {  // heartbeats keep it alive
      ++nics.a.control.heartbeat;
      ++nics.b.control.heartbeat;
      steps.run_until([] { return false; }, 50'000);
    }
    ASSERT_FALSE(steps.has_stopped);
    if (why == gpu::Stopped::by_owner) nics.a.control.stop = 1;
    ASSERT_TRUE(steps.run_until([&] { return steps.has_stopped; }, 10'000'000));
    steps.run_until([&] { return nics.a.control.stopped != 0; }, 10'000'000);
    EXPECT_EQ(nics.a.control.stopped, static_cast<std::uint64_t>(why));
    nics.a.dispatchers[0]->close();
    for (auto& worker : nics.a.workers) EXPECT_EQ(worker.step(), gpu::WorkerState::closed);
  }
}

/// Notes the size of each store.
struct CountingPlatform : gpu::HostPlatform {
  template <typename T>
  void store(std::byte* to, const T& value) const {
    std::memcpy(to, &value, sizeof value);
    sizes->push_back(sizeof value);
  }
  std::vector<std::size_t>* sizes;
};

TEST(GpuNicCopy, BytesArriveAndAlignedWordsAreStoredAtOnce) {
  alignas(16) std::array<std::byte, 512> from{}, to{};
  std::vector<std::size_t> sizes;
  CountingPlatform platform;
  platform.sizes = &sizes;
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (std::size_t source = 0; source < 17; ++source)
    for (std::size_t target = 0; target < 17; ++target)
      for (const std::size_t bytes : {0, 1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 200, 400}) {
        to.fill(std::byte{0});
        sizes.clear();
        for (std::uint32_t lane = 0; lane < 3; ++lane)
          gpu::copy<4>(platform, &to[target], &from[source], bytes, lane, 3);
        for (std::size_t i = 0; i < to.size(); ++i)
          ASSERT_EQ(to[i],
                    i >= target && i < target + bytes ? from[source + i - target] : std::byte{0})
              << source << " " << target << " " << bytes << " " << i;
        if (bytes == 8 && target % 8 == 0) ASSERT_EQ(sizes, std::vector<std::size_t>{8});
        if (bytes == 4 && target % 4 == 0) ASSERT_EQ(sizes, std::vector<std::size_t>{4});
      }
}

// All lanes pass the gate once, before their first store.
TEST(GpuNicCopy, TheGateIsBeforeTheFirstStore) {
  alignas(16) std::array<std::byte, 1024> from{}, to{};
  std::vector<std::size_t> sizes;
  CountingPlatform platform;
  platform.sizes = &sizes;
  for (const std::size_t source : {0, 3})
    for (const std::size_t target : {0, 3})
      for (const std::size_t bytes : {0, 5, 16, 200, 900})
        for (std::uint32_t lane = 0; lane < 3; ++lane) {
          sizes.clear();
          int calls = 0;
          gpu::copy<4>(platform, &to[target], &from[source], bytes, lane, 3, [&] {
            ++calls;
            EXPECT_TRUE(sizes.empty());
          });
          EXPECT_EQ(calls, 1) << source << " " << target << " " << bytes << " " << lane;
        }
}

}  // namespace
}  // namespace shoal::emulator::test
