// SPDX-License-Identifier: Apache-2.0
// Guarantees of the ordering tiers, and their limits; replay, indices and back-pressure.
// @traits one_thread
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "rig.hpp"

namespace shoal::emulator::test {
namespace {

using std::chrono::microseconds;

NetworkOptions several_paths(std::uint64_t seed = 1) {
  return {.latency = Time(2000), .paths = 8, .path_skew = Time(3000), .seed = seed};
}

/// Writes 16 KiB and then a flag, and returns whether the data was complete whenever the flag was
/// seen.
bool flag_follows_data(Ordering ordering, bool flag_by_atomic) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Pair pair(several_paths(seed), {}, {.mtu = 1024, .ordering = ordering});
    constexpr std::size_t kBytes = 16 << 10, kFlag = 32 << 10;
    for (std::size_t i = 0; i < kBytes / 8; ++i) pair.a.memory[i] = i + 1;
    pair.a.memory[kFlag / 8] = 1;
    pair.a.write(pair.b, 0, 0, kBytes, {});
    if (flag_by_atomic)
      pair.a.atomic(pair.b, {.opcode = Opcode::fetch_add, .swap_or_add = 1}, kFlag, kFlag + 8);
    else
      pair.a.write(pair.b, kFlag, kFlag, 8);
    EXPECT_TRUE(pair.network.run_until([&] { return pair.b.memory[kFlag / 8] != 0; }));
    for (std::size_t i = 0; i < kBytes / 8; ++i)
      if (pair.b.memory[i] != i + 1) return false;
  }
  return true;
}

TEST(EmulatorOrdering, AtomicFollowsDataInEveryTier) {
  for (const Ordering ordering : {Ordering::strict, Ordering::adaptive, Ordering::unordered})
    EXPECT_TRUE(flag_follows_data(ordering, true)) << static_cast<int>(ordering);
}

TEST(EmulatorOrdering, WrittenFlagFollowsDataOnlyUnderStrictOrdering) {
  EXPECT_TRUE(flag_follows_data(Ordering::strict, false));
  EXPECT_FALSE(flag_follows_data(Ordering::adaptive, false));
  EXPECT_FALSE(flag_follows_data(Ordering::unordered, false));
}

TEST(EmulatorOrdering, AnImmediateFollowsDataInEveryTier) {
  for (const Ordering ordering : {Ordering::strict, Ordering::adaptive, Ordering::unordered})
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      Pair pair(several_paths(seed), {}, {.mtu = 1024, .ordering = ordering});
      constexpr std::size_t kWords = 2048;
      for (std::size_t i = 0; i < kWords; ++i) pair.a.memory[i] = i + 1;
      pair.b.post_receive(32 << 10, 0);
      pair.a.write(pair.b, 0, 0, kWords * 8, {});
      pair.a.writer->start(Opcode::write_immediate, {.signalled = true, .immediate = 7})
          .remote(pair.b.address(0), pair.b.key);
      pair.a.finish();
      EXPECT_EQ(pair.wait(pair.b.received).immediate, 7U);
      std::size_t stale = 0;
      for (std::size_t i = 0; i < kWords; ++i) stale += pair.b.memory[i] != i + 1 ? 1 : 0;
      EXPECT_EQ(stale, 0U) << "tier " << static_cast<int>(ordering) << ", seed " << seed;
    }
}

Time put_with_signal(Ordering ordering) {
  Pair pair({.latency = Time(5000)}, {}, {.ordering = ordering});
  pair.a.write(pair.b, 0, 0, 4096, {});
  pair.a.atomic(pair.b, {.opcode = Opcode::fetch_add, .swap_or_add = 1}, 8192, 8200);
  pair.network.run_until([&] { return pair.b.memory[1024] != 0; });
  return pair.network.now();
}

TEST(EmulatorOrdering, AdaptiveRoutingCostsARoundTripBeforeASignal) {
  const Time strict = put_with_signal(Ordering::strict);
  const Time adaptive = put_with_signal(Ordering::adaptive);
  const Time unordered = put_with_signal(Ordering::unordered);
  EXPECT_NEAR(static_cast<double>((adaptive - strict).count()), 10000, 500);
  EXPECT_NEAR(static_cast<double>((unordered - strict).count()), 0, 100);
}

Time put_with_immediate(Ordering ordering) {
  Pair pair({.latency = Time(5000)}, {}, {.ordering = ordering});
  pair.b.post_receive(32 << 10, 0);
  pair.a.write(pair.b, 0, 0, 4096, {});
  pair.a.writer->start(Opcode::write_immediate, {.signalled = true, .immediate = 7})
      .remote(pair.b.address(0), pair.b.key);
  pair.a.finish();
  EXPECT_EQ(pair.wait(pair.b.received).immediate, 7U);
  return pair.network.now();
}

// Under adaptive routing the requester holds it as it holds an atomic.
TEST(EmulatorOrdering, AdaptiveRoutingCostsARoundTripBeforeAnImmediate) {
  const Time strict = put_with_immediate(Ordering::strict);
  const Time adaptive = put_with_immediate(Ordering::adaptive);
  const Time unordered = put_with_immediate(Ordering::unordered);
  EXPECT_NEAR(static_cast<double>((adaptive - strict).count()), 10000, 500);
  EXPECT_NEAR(static_cast<double>((unordered - strict).count()), 0, 100);
}

/// True if data in memory with relaxed ordering is complete when a signal in other memory arrives.
bool signal_follows_relaxed_data(bool relaxed_signal) {
  NetworkOptions options;
  options.nic.relaxed_delay = Time(3000);
  Pair pair(options);
  MemoryKeys& keys = pair.network.nic(1).keys();
  const KeyAttributes all{.domain = 1,
                          .address = pair.b.address(),
                          .length = 4096,
                          .memory = pair.b.bytes(),
                          .access = kAllAccess | Access::relaxed_ordering};
  const std::uint32_t strict = std::exchange(pair.b.key, keys.create(all));
  pair.a.memory[0] = 7;
  pair.a.write(pair.b, 0, 0, 8, {});
  if (!relaxed_signal) pair.b.key = strict;
  pair.a.atomic(pair.b, {.opcode = Opcode::fetch_add, .swap_or_add = 1}, 64, 8);
  pair.network.run_until([&] { return pair.b.memory[8] != 0; });
  const bool complete = pair.b.memory[0] == 7;
  EXPECT_EQ(pair.sent().syndrome, Syndrome::none);
  pair.network.run_until([] { return false; }, pair.network.now() + microseconds(10));
  EXPECT_EQ(pair.b.memory[0], 7U);
  return complete;
}

TEST(EmulatorOrdering, SignalsBelongInMemoryWithoutRelaxedOrdering) {
  EXPECT_TRUE(signal_follows_relaxed_data(false));
  EXPECT_FALSE(signal_follows_relaxed_data(true));
}

TEST(EmulatorOrdering, AtomicIsExecutedOnceWhenItsResponseIsLost) {
  for (const Ordering ordering : {Ordering::strict, Ordering::adaptive, Ordering::unordered}) {
    Pair pair({}, {}, {.ack_timeout = 6, .ordering = ordering});
    int lost = 0;
    pair.network.drop_if([&](const Packet& packet) {
      return packet.kind == PacketKind::atomic_response && lost++ < 3;
    });
    pair.b.memory[1] = 10;
    pair.a.atomic(pair.b, {.opcode = Opcode::fetch_add, .swap_or_add = 5}, 8, 0);
    EXPECT_EQ(pair.sent().syndrome, Syndrome::none);
    EXPECT_EQ(lost, 4);
    EXPECT_EQ(pair.a.memory[0], 10U);
    EXPECT_EQ(pair.b.memory[1], 15U);
  }
}

TEST(EmulatorOrdering, NoMoreReadsAndAtomicsAreInFlightThanAgreed) {
  Pair pair({.latency = Time(50000)}, {},
            {.ack_timeout = 8, .reads_and_atomics = 3, .remote_reads_and_atomics = 3});
  std::uint32_t in_flight = 0, most = 0;
  pair.network.drop_if([&](const Packet& packet) {
    if (packet.kind == PacketKind::atomic_request) most = std::max(most, ++in_flight);
    if (packet.kind == PacketKind::atomic_response) --in_flight;
    return false;
  });
  for (std::size_t i = 0; i < 12; ++i)
    pair.a.atomic(pair.b, {.opcode = Opcode::fetch_add, .swap_or_add = 1}, 8, 64 + 8 * i);
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(pair.sent().syndrome, Syndrome::none);
    EXPECT_EQ(pair.a.memory[8 + i], i);
  }
  EXPECT_EQ(most, 3U);
}

TEST(EmulatorOrdering, LostResponsesOfManyAtomicsAreReplayed) {
  Pair pair({.loss = 0.2}, {},
            {.ack_timeout = 6, .reads_and_atomics = 4, .remote_reads_and_atomics = 4});
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < 60; ++i) {
    pair.a.atomic(pair.b, {.opcode = Opcode::fetch_add, .swap_or_add = i}, 8, 64 + 8 * i);
    if (i % 4 != 3) continue;
    for (std::size_t k = i - 3; k <= i; ++k) {
      ASSERT_EQ(pair.sent().syndrome, Syndrome::none);
      EXPECT_EQ(pair.a.memory[8 + k], sum);
      sum += k;
    }
  }
  EXPECT_EQ(pair.b.memory[1], sum);
}

TEST(EmulatorOrdering, ManyAtomicsAndWritesInFlightSurviveLoss) {
  for (const Ordering ordering : {Ordering::strict, Ordering::adaptive, Ordering::unordered})
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      Pair pair({.paths = 4, .path_skew = Time(300), .loss = 0.1, .seed = seed}, {.blocks = 1024},
                {.ack_timeout = 6,
                 .reads_and_atomics = 4,
                 .remote_reads_and_atomics = 4,
                 .ordering = ordering});
      for (std::size_t i = 0; i < 200; ++i) {
        pair.a.write(pair.b, 0, 8192, 64, {});
        pair.a.atomic(pair.b, {.opcode = Opcode::fetch_add, .swap_or_add = 1}, 8, 64 + 8 * i);
      }
      for (std::size_t i = 0; i < 200; ++i) {
        ASSERT_EQ(pair.sent().syndrome, Syndrome::none)
            << i << ", ordering " << static_cast<int>(ordering) << ", seed " << seed;
        ASSERT_EQ(pair.a.memory[8 + i], i);
      }
      ASSERT_EQ(pair.b.memory[1], 200U);
    }
}

TEST(EmulatorOrdering, FenceWaitsForTheReadBeforeIt) {
  for (const bool fenced : {false, true}) {
    Pair pair({.latency = Time(20000)});
    pair.b.memory[512] = 99;
    pair.a.read(pair.b, 4096, 0, 8, {});
    pair.a.write(pair.b, 0, 8192, 8, {.signalled = true, .fenced = fenced});
    EXPECT_EQ(pair.sent().syndrome, Syndrome::none);
    EXPECT_EQ(pair.b.memory[1024], fenced ? 99U : 0U);
  }
}

TEST(EmulatorOrdering, UnorderedTierPlacesWritesBeforeTheirTurn) {
  Pair pair({}, {}, {.ack_timeout = 10, .ordering = Ordering::unordered});
  int seen = 0;
  pair.network.drop_if(
      [&](const Packet& packet) { return packet.kind == PacketKind::write && seen++ == 0; });
  pair.a.memory[0] = 5;
  pair.a.write(pair.b, 0, 0, 8);
  pair.a.write(pair.b, 0, 64, 8);
  pair.network.run_until([&] { return pair.b.memory[8] == 5; });
  EXPECT_EQ(pair.b.memory[0], 0U);
  EXPECT_EQ(pair.a.sent.poll(), std::nullopt);
  EXPECT_EQ(pair.sent().syndrome, Syndrome::none);
  EXPECT_EQ(pair.b.memory[0], 5U);
}

TEST(EmulatorOrdering, MissingPacketIsReportedAndSentAloneInTheUnorderedTier) {
  NetworkOptions options;
  options.nic.window = 2048;
  Pair pair(options, {.blocks = 1024},
            {.mtu = 256, .ack_timeout = 0, .ordering = Ordering::unordered});
  int seen = 0;
  pair.network.drop_if(
      [&](const Packet& packet) { return packet.kind == PacketKind::write && seen++ == 3; });
  for (int i = 0; i < 100; ++i) pair.a.write(pair.b, 0, 0, 4096, {.signalled = i == 99});
  EXPECT_EQ(pair.sent().syndrome, Syndrome::none);  // there is no timeout
  EXPECT_EQ(pair.a.pair->counters().resent, 1U);
}

TEST(EmulatorOrdering, EarlyDuplicateIsCountedAndNotPlacedAgain) {
  Pair pair({.duplication = 1}, {},
            {.mtu = 256, .ack_timeout = 8, .ordering = Ordering::unordered});
  int seen = 0;
  pair.network.drop_if(
      [&](const Packet& packet) { return packet.kind == PacketKind::write && seen++ < 2; });
  pair.a.write(pair.b, 0, 0, 1024);
  pair.network.run_until([] { return false; }, microseconds(100));
  EXPECT_EQ(pair.b.pair->counters().duplicates, 3U);  // of three packets behind the lost one
  EXPECT_EQ(pair.sent().syndrome, Syndrome::none);
}

TEST(EmulatorOrdering, PacketsBehindAPauseAreDroppedWithoutAnotherRefusal) {
  Pair pair({}, {}, {.min_rnr_timer = 1});
  for (int i = 0; i < 5; ++i) pair.a.send(0, 8);
  pair.network.run_until([] { return false; }, microseconds(5));
  EXPECT_EQ(pair.a.pair->counters().receiver_not_ready, 1U);
  EXPECT_EQ(pair.a.pair->counters().naks, 0U);
  for (int i = 0; i < 5; ++i) pair.b.post_receive(0, 8);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(pair.sent().syndrome, Syndrome::none);
}

TEST(EmulatorQueues, IndicesWrapAround) {
  for (const std::uint32_t blocks : {32U, 1024U}) {
    Pair pair({}, {.blocks = blocks});
    for (std::uint32_t i = 0; i < 70000; ++i) {
      pair.a.memory[0] = i;
      const std::uint16_t index = pair.a.write(pair.b, 0, 0, 8);
      const Seen seen = pair.sent();
      ASSERT_EQ(seen.index, index);
      ASSERT_EQ(seen.index, static_cast<std::uint16_t>(i));
      ASSERT_EQ(pair.b.memory[0], i);
    }
  }
}

TEST(EmulatorQueues, FullQueueIsExecutedWhole) {
  Pair pair({}, {.blocks = 32768, .completions = 32768});
  for (std::uint32_t i = 0; i < 32768; ++i) {
    pair.a.writer->start(Opcode::fetch_add, {.signalled = i == 32767})
        .remote(pair.b.address(8), pair.b.key)
        .atomic({.opcode = Opcode::fetch_add, .swap_or_add = 1})
        .data(pair.a.address(), 8, pair.a.key);
    pair.a.writer->finish();
  }
  pair.a.ring();
  EXPECT_EQ(pair.sent().index, 32767);
  EXPECT_EQ(pair.b.memory[1], 32768U);
}

TEST(EmulatorQueues, AnEventAnnouncesACompletionOnce) {
  Pair pair;
  CompletionQueue& queue = *pair.a.sent.queue;
  int events = 0;
  queue.on_event = [&] { ++events; };
  const auto produce = [&](std::uint64_t number) {
    pair.a.write(pair.b, 0, 0, 8);
    ASSERT_TRUE(pair.network.run_until([&] { return queue.produced() == number; }));
  };
  queue.arm(0);
  EXPECT_EQ(events, 0);
  produce(1);
  EXPECT_EQ(events, 1);
  queue.arm(0);  // before it polls
  EXPECT_EQ(events, 1) << "the completion has had its event";
  produce(2);
  EXPECT_EQ(events, 2);
  queue.arm(2);
  produce(3);
  EXPECT_EQ(events, 3);
  produce(4);
  EXPECT_EQ(events, 3) << "not armed";
  queue.arm(3);
  EXPECT_EQ(events, 4) << "one that came between the last poll and this call";
}

TEST(EmulatorQueues, CollapsedQueueHoldsTheLastCompletion) {
  VirtualNetwork network({});
  alignas(8) std::array<std::byte, 64> entry{};
  auto queue = network.nic(0).create_completion_queue(
      {.entries = entry.data(), .size = 1, .collapsed = true, .ignore_overrun = true});
  for (std::uint16_t i = 0; i < 1000; ++i) {
    ASSERT_TRUE(queue.object->push({.request_index = i}));
    ASSERT_EQ(load_be<std::uint16_t>(entry.data() + 60), i);
  }
  ASSERT_TRUE(
      queue.object->push({.opcode = CqeOpcode::request_error, .syndrome = Syndrome::flushed}));
  EXPECT_EQ(static_cast<unsigned>(entry[63]) >> 4, 13U);
}

TEST(EmulatorQueues, SharedReceivesServeTwoQueuePairs) {
  VirtualNetwork network({});
  End a(network, 0), b(network, 0), c(network, 1);
  constexpr std::uint32_t kStride = 32;
  std::vector<std::byte> ring(8 * kStride);
  alignas(8) std::array<std::byte, 8> record{};
  auto shared = network.nic(1).create_receive_queue({.memory = ring.data(),
                                                     .size = 8,
                                                     .stride = kStride,
                                                     .doorbell_record = record.data(),
                                                     .shared = true});
  for (std::uint16_t i = 0; i < 8; ++i) {
    std::byte* const at = ring.data() + i * kStride;
    store_be(at + 2, static_cast<std::uint16_t>((i + 3) % 8));  // the list is not in order
    store_be(at + 16, std::uint32_t{64});
    store_be(at + 20, c.key);
    store_be(at + 24, c.address(64 * i));
  }
  store_be(record.data(), std::uint32_t{4});
  std::vector<std::shared_ptr<QueuePair>> targets;
  for (End* source : {&a, &b}) {
    auto target =
        network.nic(1)
            .create_queue_pair(
                {.domain = 1, .receive_completions = c.received.queue, .receives = shared.object})
            .object;
    const Connection to_source{
        .remote_lid = 1, .remote_qp = source->pair->number(), .access = kAllAccess};
    target->modify(QpState::init, to_source);
    target->modify(QpState::ready_to_receive, to_source);
    Connection to_target{.remote_lid = 2, .remote_qp = target->number(), .access = kAllAccess};
    for (const QpState state : {QpState::init, QpState::ready_to_receive, QpState::ready_to_send})
      ASSERT_EQ(source->pair->modify(state, to_target), Status::ok);
    targets.push_back(target);
  }
  a.send(0, 8);
  b.send(0, 8);
  a.send(0, 8);
  b.send(0, 8);
  std::vector<std::uint16_t> indices;
  network.run_until([&] {
    if (const auto seen = c.received.poll()) indices.push_back(seen->index);
    return indices.size() == 4;
  });
  EXPECT_EQ(indices, (std::vector<std::uint16_t>{0, 3, 6, 1}));
}

/// The queue pair of each of the first 12 packets: 0 to 2. A turn is two packets.
std::vector<std::uint32_t> order_of_packets(Arbitration arbitration, std::uint64_t seed = 1) {
  NetworkOptions options;
  options.seed = seed;
  options.nic.quantum = 2;
  options.nic.arbitration = arbitration;
  std::vector<std::uint32_t> order;
  options.nic.trace = [&](const TraceEvent& event) {
    if (event.nic == 1 && event.kind == TraceEvent::Kind::sent) order.push_back(event.qp_number);
  };
  VirtualNetwork network(options);
  std::vector<std::unique_ptr<End>> sources, targets;
  for (int i = 0; i < 3; ++i) {
    sources.push_back(std::make_unique<End>(network, 0));
    targets.push_back(std::make_unique<End>(network, 1));
    sources[i]->connect(*targets[i]);
    targets[i]->connect(*sources[i]);
  }
  // The first keeps the link busy while the others get ready in the reverse order.
  sources[0]->write(*targets[0], 0, 0, 6 * 4096);
  sources[2]->write(*targets[2], 0, 0, 6 * 4096);
  sources[1]->write(*targets[1], 0, 0, 6 * 4096);
  network.run_until([&] { return order.size() == 12; });
  for (std::uint32_t& number : order) number -= sources[0]->pair->number();
  return order;
}

TEST(EmulatorQueues, ArbitrationIsRoundRobinByNumber) {
  EXPECT_EQ(order_of_packets(Arbitration::by_number),
            (std::vector<std::uint32_t>{0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2}));
}

TEST(EmulatorQueues, ArbitrationByTheOldestDoorbellFollowsTheDoorbells) {
  EXPECT_EQ(order_of_packets(Arbitration::oldest_doorbell),
            (std::vector<std::uint32_t>{0, 0, 2, 2, 1, 1, 0, 0, 2, 2, 1, 1}));
}

TEST(EmulatorQueues, RandomArbitrationDependsOnTheSeedAlone) {
  std::set<std::vector<std::uint32_t>> orders;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const std::vector<std::uint32_t> order = order_of_packets(Arbitration::random, seed);
    EXPECT_EQ(order, order_of_packets(Arbitration::random, seed));
    for (std::size_t i = 0; i < order.size(); i += 2) EXPECT_EQ(order[i], order[i + 1]) << "a turn";
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 5U);
}

TEST(EmulatorQueues, SameSeedRepeatsARun) {
  std::array<std::vector<std::uint64_t>, 2> runs;
  for (auto& run : runs) {
    NetworkOptions options = several_paths(7);
    options.loss = 0.05;
    options.jitter = Time(500);
    options.nic.trace = [&](const TraceEvent& event) {
      run.push_back(static_cast<std::uint64_t>(event.time.count()) ^
                    std::uint64_t{event.value} << 32 ^ std::uint64_t{event.qp_number} << 56);
    };
    Pair pair(options, {}, {.mtu = 512, .ack_timeout = 8, .ordering = Ordering::unordered});
    for (int i = 0; i < 20; ++i) pair.a.write(pair.b, 0, 0, 5000);
    for (int i = 0; i < 20; ++i) (void)pair.sent();
  }
  EXPECT_GT(runs[0].size(), 400U);
  EXPECT_EQ(runs[0], runs[1]);
}

}  // namespace
}  // namespace shoal::emulator::test
