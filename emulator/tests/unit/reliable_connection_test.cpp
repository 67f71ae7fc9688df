// SPDX-License-Identifier: Apache-2.0
// Operations of a reliable connection between two emulated NICs, without and with loss.
// @traits one_thread
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "rig.hpp"

namespace shoal::emulator::test {
namespace {

void fill(End& end, std::size_t offset, std::size_t length, unsigned seed) {
  std::mt19937 random(seed);
  for (std::size_t i = 0; i < length; ++i)
    end.bytes()[offset + i] = static_cast<std::byte>(random());
}
bool same(End& a, std::size_t at_a, End& b, std::size_t at_b, std::size_t length) {
  return std::memcmp(a.bytes() + at_a, b.bytes() + at_b, length) == 0;
}

TEST(EmulatorConnection, WriteMovesBytes) {
  Pair pair;
  for (const std::uint32_t length : {0U, 1U, 4U, 8U, 100U, 4096U, 4097U, 30000U}) {
    fill(pair.a, 0, length, length);
    const std::uint16_t index = pair.a.write(pair.b, 0, 1024, length);
    const Seen seen = pair.sent();
    EXPECT_EQ(seen.opcode, CqeOpcode::request);
    EXPECT_EQ(seen.index, index);
    EXPECT_TRUE(same(pair.a, 0, pair.b, 1024, length)) << length;
  }
}

TEST(EmulatorConnection, InlineWriteWrapsAtTheEndOfTheRing) {
  Pair pair({}, {.blocks = 4});
  for (std::uint32_t round = 0; round < 20; ++round) {
    std::vector<std::byte> bytes(60 + round);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + round);
    pair.a.writer->start(Opcode::write, {.signalled = true}).remote(pair.b.address(8), pair.b.key);
    pair.a.writer->inline_data(bytes);
    pair.a.finish();
    EXPECT_EQ(pair.sent().syndrome, Syndrome::none);
    EXPECT_EQ(std::memcmp(pair.b.bytes() + 8, bytes.data(), bytes.size()), 0) << round;
  }
}

TEST(EmulatorConnection, ARequestWithoutEffectCompletesInItsTurn) {
  Pair pair;
  pair.a.write(pair.b, 0, 1024, 30000);
  pair.a.writer->start(Opcode::nop, {.signalled = true});
  const std::uint16_t index = pair.a.finish();
  EXPECT_NE(pair.sent().index, index) << "before the write";
  const Seen seen = pair.sent();
  EXPECT_EQ(seen.opcode, CqeOpcode::request);
  EXPECT_EQ(seen.index, index);
}

TEST(EmulatorConnection, NothingTimesOutWhenAllIsAcknowledged) {
  Pair pair;
  pair.a.write(pair.b, 0, 1024, 30000);
  pair.a.read(pair.b, 0, 1024, 30000);
  (void)pair.sent();
  (void)pair.sent();
  pair.network.run_until([] { return false; });
  EXPECT_EQ(pair.a.pair->counters().timeouts, 0U);
}

TEST(EmulatorConnection, PacketsOfAnotherNicAreIgnored) {
  Pair pair;
  Packet packet;
  packet.kind = PacketKind::write;
  packet.first = packet.last = packet.ack_requested = true;
  packet.source = 9;
  packet.target = 2;
  packet.target_qp = pair.b.pair->number();
  packet.remote_key = pair.b.key;
  packet.address = pair.b.address(0);
  packet.payload.assign(8, std::byte{1});
  const Packet copy = packet;
  pair.network.nic(1).receive(std::move(packet));
  EXPECT_EQ(pair.b.memory[0], 0U);
  Packet own = copy;  // the same from the peer is executed
  own.source = 1;
  pair.network.nic(1).receive(std::move(own));
  EXPECT_NE(pair.b.memory[0], 0U);
}

TEST(EmulatorConnection, ReadFetchesBytes) {
  Pair pair;
  for (const std::uint32_t length : {1U, 4096U, 20000U}) {
    fill(pair.b, 4096, length, length);
    pair.a.read(pair.b, 4096, 0, length);
    EXPECT_EQ(pair.sent().syndrome, Syndrome::none);
    EXPECT_TRUE(same(pair.a, 0, pair.b, 4096, length)) << length;
  }
}

TEST(EmulatorConnection, AtomicsReturnTheOldValue) {
  Pair pair;
  pair.b.memory[3] = 40;
  pair.a.atomic(pair.b, {.opcode = Opcode::fetch_add, .swap_or_add = 2}, 24, 0);
  EXPECT_EQ(pair.sent().syndrome, Syndrome::none);
  EXPECT_EQ(pair.a.memory[0], 40U);
  EXPECT_EQ(pair.b.memory[3], 42U);
  pair.a.atomic(pair.b, {.opcode = Opcode::compare_swap, .swap_or_add = 7, .compare = 42}, 24, 0);
  (void)pair.sent();
  EXPECT_EQ(pair.a.memory[0], 42U);
  EXPECT_EQ(pair.b.memory[3], 7U);
  pair.a.atomic(pair.b, {.opcode = Opcode::compare_swap, .swap_or_add = 9, .compare = 42}, 24, 0);
  (void)pair.sent();
  EXPECT_EQ(pair.b.memory[3], 7U);
}

TEST(EmulatorConnection, MaskedAtomicsFollowTheScalarModel) {
  Pair pair;
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    AtomicOperands operands{
        .opcode = random() % 2 == 0 ? Opcode::masked_fetch_add : Opcode::masked_compare_swap,
        .size = static_cast<std::uint8_t>(random() % 2 == 0 ? 4 : 8),
        .swap_or_add = random(),
        .compare = random(),
        .swap_mask = random(),
        .compare_mask_or_boundary = random() & random() & random()};
    const std::uint64_t width = operands.size == 4 ? 0xffffffff : ~std::uint64_t{0};
    const std::uint64_t before = random() & width;
    pair.b.memory[2] = before;
    if (random() % 2 == 0) operands.compare = before;
    // The model: field by field for sums, bit by bit for swaps.
    std::uint64_t want = before;
    if (operands.opcode == Opcode::masked_fetch_add) {
      std::uint64_t carry = 0;
      want = 0;
      for (int bit = 0; bit < operands.size * 8; ++bit) {
        const std::uint64_t sum = (before >> bit & 1) + (operands.swap_or_add >> bit & 1) + carry;
        want |= (sum & 1) << bit;
        carry = (operands.compare_mask_or_boundary >> bit & 1) != 0 ? 0 : sum >> 1;
      }
    } else {
      bool equal = true;
      for (int bit = 0; bit < operands.size * 8; ++bit)
        if ((operands.compare_mask_or_boundary >> bit & 1) != 0)
          equal = equal && (before >> bit & 1) == (operands.compare >> bit & 1);
      for (int bit = 0; equal && bit < operands.size * 8; ++bit)
        if ((operands.swap_mask >> bit & 1) != 0)
          want = (want & ~(std::uint64_t{1} << bit)) | ((operands.swap_or_add >> bit & 1) << bit);
    }
    pair.a.atomic(pair.b, operands, 16, 0);
    ASSERT_EQ(pair.sent().syndrome, Syndrome::none);
    ASSERT_EQ(pair.b.memory[2] & width, want) << round;
    if (operands.size == 8)
      ASSERT_EQ(pair.a.memory[0], before);
    else
      ASSERT_EQ(load_be<std::uint32_t>(pair.a.bytes()), before);
  }
}

TEST(EmulatorConnection, SendFillsReceives) {
  Pair pair;
  fill(pair.a, 0, 9000, 1);
  pair.b.post_receive(0, 10000);
  pair.b.post_receive(16384, 10000);
  pair.a.send(0, 9000);
  pair.a.send(100, 50, Opcode::send_immediate, {.signalled = true, .immediate = 0x11223344});
  const Seen first = pair.wait(pair.b.received), second = pair.wait(pair.b.received);
  EXPECT_EQ(first.opcode, CqeOpcode::response_send);
  EXPECT_EQ(first.bytes, 9000U);
  EXPECT_EQ(second.opcode, CqeOpcode::response_send_immediate);
  EXPECT_EQ(second.immediate, 0x11223344U);
  EXPECT_EQ(second.index, 1);
  EXPECT_TRUE(same(pair.a, 0, pair.b, 0, 9000));
  EXPECT_TRUE(same(pair.a, 100, pair.b, 16384, 50));
}

TEST(EmulatorConnection, WriteImmediateTakesAReceive) {
  Pair pair;
  pair.b.post_receive(0, 0);
  fill(pair.a, 0, 5000, 2);
  pair.a.writer->start(Opcode::write_immediate, {.signalled = true, .immediate = 7})
      .remote(pair.b.address(4096), pair.b.key)
      .data(pair.a.address(), 5000, pair.a.key);
  pair.a.finish();
  const Seen seen = pair.wait(pair.b.received);
  EXPECT_EQ(seen.opcode, CqeOpcode::response_write_immediate);
  EXPECT_EQ(seen.bytes, 5000U);
  EXPECT_EQ(seen.immediate, 7U);
  EXPECT_TRUE(same(pair.a, 0, pair.b, 4096, 5000));
}

/// Drives 300 mixed operations and checks every result.
void run_mixed(const NetworkOptions& options, const Connection& connection) {
  Pair pair(options, {.blocks = 1024, .receives = 512, .memory = 1 << 20}, connection);
  std::mt19937 random(3);
  constexpr std::size_t kHalf = 1 << 19;
  fill(pair.a, 0, kHalf, 11);
  fill(pair.b, kHalf, kHalf, 12);
  pair.b.memory[kHalf / 8 - 1] = 0;
  std::uint64_t sum = 0;
  std::vector<std::function<void()>> checks;
  std::size_t write_at = 0, read_at = kHalf + 8;
  for (int i = 0; i < 300; ++i) {
    const std::uint32_t length = 1 + random() % 3000;
    if (i % 5 == 0) {
      const std::uint64_t add = random() % 100;
      const std::size_t result = 2 * kHalf - 64 + i % 7 * 8;
      pair.a.atomic(pair.b, {.opcode = Opcode::fetch_add, .swap_or_add = add}, kHalf - 8, result);
      checks.push_back([&, result, before = sum] { EXPECT_EQ(pair.a.memory[result / 8], before); });
      sum += add;
    } else if (i % 2 == 0 && write_at + length < kHalf - 8) {
      pair.a.write(pair.b, write_at, write_at, length);
      checks.push_back(
          [&, write_at, length] { EXPECT_TRUE(same(pair.a, write_at, pair.b, write_at, length)); });
      write_at += length;
    } else {
      pair.a.read(pair.b, read_at, read_at, length);
      checks.push_back(
          [&, read_at, length] { EXPECT_TRUE(same(pair.a, read_at, pair.b, read_at, length)); });
      read_at += length;
      if (read_at + 3100 > 2 * kHalf) read_at = kHalf + 8;
    }
    if (i % 7 != 6) continue;
    for (auto& check : checks) {
      ASSERT_EQ(pair.sent().syndrome, Syndrome::none) << "operation " << i;
      check();
    }
    checks.clear();
  }
  for (auto& check : checks) {
    ASSERT_EQ(pair.sent().syndrome, Syndrome::none);
    check();
  }
  EXPECT_EQ(pair.b.memory[kHalf / 8 - 1], sum);
}

class EmulatorOrderings : public testing::TestWithParam<Ordering> {};

TEST_P(EmulatorOrderings, MixedOperationsWithoutLoss) {
  run_mixed({.paths = 4, .path_skew = Time(700), .jitter = Time(2000)},
            {.mtu = 1024,
             .send_psn = kPsnMask - 50,
             .receive_psn = kPsnMask - 50,
             .ordering = GetParam()});
}

TEST_P(EmulatorOrderings, MixedOperationsWithLossAndDuplicates) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed)
    run_mixed({.paths = 4,
               .path_skew = Time(700),
               .jitter = Time(2000),
               .loss = 0.03,
               .duplication = 0.03,
               .seed = seed},
              {.mtu = 1024,
               .send_psn = kPsnMask - 50,
               .receive_psn = kPsnMask - 50,
               .ack_timeout = 8,
               .ordering = GetParam()});
}

INSTANTIATE_TEST_SUITE_P(All, EmulatorOrderings,
                         testing::Values(Ordering::strict, Ordering::adaptive,
                                         Ordering::unordered));

}  // namespace
}  // namespace shoal::emulator::test
