// SPDX-License-Identifier: Apache-2.0
// Adaptive retransmission: losses are found long before the timeout of the queue pair, and a peer
// that is gone is noticed after the same time as without it.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <set>

#include "rig.hpp"

namespace shoal::emulator::test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Ordering kOrderings[] = {Ordering::strict, Ordering::adaptive, Ordering::unordered};
/// 4.3 s: nothing here may wait for it.
constexpr std::uint8_t kLongTimeout = 20;

NetworkOptions resending_after(Time first) {
  NetworkOptions options;
  options.nic.first_resend = first;
  return options;
}

TEST(EmulatorEarlyResend, FindsTheLossOfAnyPacket) {
  for (const Ordering ordering : kOrderings)
    for (const PacketKind lost :
         {PacketKind::write, PacketKind::acknowledge, PacketKind::read_request,
          PacketKind::read_response, PacketKind::atomic_request, PacketKind::atomic_response}) {
      SCOPED_TRACE(testing::Message() << "ordering " << static_cast<int>(ordering) << ", packet "
                                      << static_cast<int>(lost));
      Pair pair(resending_after(microseconds(50)), {},
                {.ack_timeout = kLongTimeout, .ordering = ordering});
      int dropped = 0;
      pair.network.drop_if(
          [&](const Packet& packet) { return packet.kind == lost && dropped++ == 0; });
      pair.a.memory[0] = 7;
      pair.b.memory[2] = 40;
      pair.a.write(pair.b, 0, 8, 8);
      EXPECT_EQ(pair.sent().syndrome, Syndrome::none);
      pair.a.read(pair.b, 8, 24, 8);
      EXPECT_EQ(pair.sent().syndrome, Syndrome::none);
      pair.a.atomic(pair.b, {.opcode = Opcode::fetch_add, .swap_or_add = 2}, 16, 32);
      EXPECT_EQ(pair.sent().syndrome, Syndrome::none);
      EXPECT_EQ(pair.b.memory[1], 7U);
      EXPECT_EQ(pair.a.memory[3], 7U);
      EXPECT_EQ(pair.a.memory[4], 40U);
      EXPECT_EQ(pair.b.memory[2], 42U);
      EXPECT_GT(dropped, 0);
      EXPECT_LT(pair.network.now(), microseconds(200));
      EXPECT_EQ(pair.a.pair->counters().timeouts, 0U);
      EXPECT_EQ(pair.a.pair->counters().resent, 1U);
    }
}

// If the responder keeps early packets, each lost packet is sent again once, and no other.
TEST(EmulatorEarlyResend, ProgressTellsWhatElseIsMissing) {
  for (const Ordering ordering : {Ordering::adaptive, Ordering::unordered}) {
    Pair pair(resending_after(microseconds(50)), {.blocks = 256},
              {.ack_timeout = kLongTimeout, .ordering = ordering});
    std::set<std::uint32_t> seen;
    pair.network.drop_if([&](const Packet& packet) {
      return packet.kind == PacketKind::write && packet.psn % 10 == 0 &&
             seen.insert(packet.psn).second;
    });
    for (int i = 0; i < 100; ++i) pair.a.write(pair.b, 0, 8, 8, {.signalled = i == 99});
    EXPECT_EQ(pair.sent().syndrome, Syndrome::none);
    EXPECT_EQ(pair.a.pair->counters().resent, 10U);
    EXPECT_LT(pair.network.now(), microseconds(200)) << "a round trip for each";
  }
}

// A responder that keeps nothing gets everything again.
TEST(EmulatorEarlyResend, GoesBackAfterTheFirstPacketInTheStrictTier) {
  Pair pair(resending_after(microseconds(50)), {.blocks = 256}, {.ack_timeout = kLongTimeout});
  int writes = 0;
  pair.network.drop_if(
      [&](const Packet& packet) { return packet.kind == PacketKind::write && writes++ < 100; });
  for (int i = 0; i < 100; ++i) pair.a.write(pair.b, 0, 8, 8, {.signalled = i == 99});
  EXPECT_EQ(pair.sent().syndrome, Syndrome::none);
  EXPECT_EQ(pair.a.pair->counters().resent, 100U);
  EXPECT_LT(pair.network.now(), microseconds(200));
}

TEST(EmulatorEarlyResend, RandomLossCostsNoTimeout) {
  for (const Ordering ordering : kOrderings)
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      NetworkOptions options = resending_after(microseconds(50));
      options.paths = 4;
      options.path_skew = Time(300);
      options.loss = 0.1;
      options.seed = seed;
      Pair pair(options, {.blocks = 1024},
                {.ack_timeout = kLongTimeout,
                 .reads_and_atomics = 4,
                 .remote_reads_and_atomics = 4,
                 .ordering = ordering});
      for (std::size_t i = 0; i < 200; ++i) {
        pair.a.write(pair.b, 0, 8192, 64, {});
        pair.a.atomic(pair.b, {.opcode = Opcode::fetch_add, .swap_or_add = 1}, 8, 64 + 8 * i);
      }
      for (std::size_t i = 0; i < 200; ++i) {
        ASSERT_EQ(pair.sent().syndrome, Syndrome::none) << "seed " << seed;
        ASSERT_EQ(pair.a.memory[8 + i], i);
      }
      EXPECT_EQ(pair.a.pair->counters().timeouts, 0U);
      EXPECT_LT(pair.network.now(), milliseconds(100));
    }
}

TEST(EmulatorEarlyResend, ADeadPeerIsNoticedAfterTheSameTimeWithFewPackets) {
  constexpr std::uint8_t kRetries = 3;
  for (const Ordering ordering : kOrderings) {
    Pair pair(resending_after(microseconds(100)), {},
              {.ack_timeout = 10, .retry_count = kRetries, .ordering = ordering});
    int packets = 0;
    pair.network.drop_if([&](const Packet&) { return ++packets > 0; });
    pair.a.write(pair.b, 0, 0, 8);
    EXPECT_EQ(pair.sent().syndrome, Syndrome::retry_exceeded);
    const double took_us = std::chrono::duration<double, std::micro>(pair.network.now()).count();
    EXPECT_NEAR(took_us, 4.096 * 1024 * (kRetries + 1), 100);
    EXPECT_EQ(pair.a.pair->counters().timeouts, kRetries + 1U);
    // One at the start and after each timeout; early ones after 0.1, 0.3, 0.7, 1.5 and 3.1 ms, then
    // one that is 3.2 ms late.
    EXPECT_EQ(packets, 1 + kRetries + 5 + 1) << static_cast<int>(ordering);
  }
}

TEST(EmulatorEarlyResend, IsOffUnlessAskedFor) {
  Pair pair({}, {}, {.ack_timeout = 10});
  int dropped = 0;
  pair.network.drop_if([&](const Packet&) { return dropped++ == 0; });
  pair.a.write(pair.b, 0, 0, 8);
  EXPECT_EQ(pair.sent().syndrome, Syndrome::none);
  EXPECT_EQ(pair.a.pair->counters().timeouts, 1U);
}

// Nothing is sent to a receiver that asked for a pause.
TEST(EmulatorEarlyResend, RespectsThePauseOfAReceiver) {
  Pair pair(resending_after(microseconds(50)), {},
            {.ack_timeout = kLongTimeout, .rnr_retry = 7, .min_rnr_timer = 14});  // 1.28 ms
  pair.a.send(0, 8);
  pair.network.run_until([] { return false; }, microseconds(900));
  EXPECT_EQ(pair.a.pair->counters().resent, 0U);
  pair.b.post_receive(0, 8);
  EXPECT_EQ(pair.sent().syndrome, Syndrome::none);
}

}  // namespace
}  // namespace shoal::emulator::test
