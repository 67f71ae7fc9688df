// SPDX-License-Identifier: Apache-2.0
// Errors of the emulated NIC: syndromes, flushes, retries, pauses and quotas.
#include <gtest/gtest.h>

#include <ostream>

#include "rig.hpp"

namespace shoal::emulator::test {
namespace {

using std::chrono::microseconds;

TEST(EmulatorErrors, WrongRemoteKeyFailsTheRequestAndFlushesTheRest) {
  Pair pair;
  pair.a.write(pair.b, 0, 0, 64);
  EXPECT_EQ(pair.sent().syndrome, Syndrome::none);
  const std::uint32_t right = std::exchange(pair.b.key, 0xdead00);
  // Unsignalled: the error completes it all the same.
  const std::uint16_t bad = pair.a.write(pair.b, 0, 0, 64, {});
  pair.b.key = right;
  std::vector<std::uint16_t> rest;
  for (int i = 0; i < 5; ++i)
    rest.push_back(pair.a.write(pair.b, 0, 0, 64, {.signalled = i % 2 == 0}));
  const Seen first = pair.sent();
  EXPECT_EQ(first.opcode, CqeOpcode::request_error);
  EXPECT_EQ(first.syndrome, Syndrome::remote_access);
  EXPECT_EQ(first.index, bad);
  for (const std::uint16_t index : rest) {
    const Seen seen = pair.sent();
    EXPECT_EQ(seen.syndrome, Syndrome::flushed);
    EXPECT_EQ(seen.index, index);
  }
  EXPECT_EQ(pair.a.pair->state(), QpState::error);
  EXPECT_EQ(pair.b.pair->state(), QpState::error);
  pair.a.write(pair.b, 0, 0, 64);  // posted in the error state
  EXPECT_EQ(pair.sent().syndrome, Syndrome::flushed);
}

// The low byte of a key is chosen by the client; the NIC compares it.
TEST(EmulatorErrors, AKeyWithAnotherLowByteIsRefused) {
  for (const bool local : {false, true}) {
    Pair pair;
    pair.a.memory[0] = 7;
    (local ? pair.a : pair.b).key ^= 1;
    pair.a.write(pair.b, 0, 0, 8);
    EXPECT_EQ(pair.sent().syndrome, local ? Syndrome::local_protection : Syndrome::remote_access);
    EXPECT_EQ(pair.b.memory[0], 0U);
  }
}

struct BadAccess {
  const char* name;
  std::uint64_t address;
  std::uint32_t length, access;
  Opcode opcode;
  Syndrome want;
};

void PrintTo(const BadAccess& access, std::ostream* out) {
  *out << access.name;
}

class EmulatorAccess : public testing::TestWithParam<BadAccess> {};

TEST_P(EmulatorAccess, HasItsSyndromeAndNoEffect) {
  const BadAccess& bad = GetParam();
  Pair pair;
  // A second key over the middle of b's memory, with these rights only.
  const std::uint32_t key = pair.network.nic(1).keys().create({.domain = 1,
                                                               .address = pair.b.address(4096),
                                                               .length = 4096,
                                                               .memory = pair.b.bytes() + 4096,
                                                               .access = bad.access});
  const auto before = pair.b.memory;
  pair.a.memory[0] = 1;
  RequestWriter& writer = *pair.a.writer;
  const AtomicOperands add{.opcode = Opcode::fetch_add, .swap_or_add = 1};
  writer.start(bad.opcode, {.signalled = true}).remote(pair.b.address(4096) + bad.address, key);
  if (is_atomic(bad.opcode)) writer.atomic(add);
  writer.data(pair.a.address(), bad.length, pair.a.key);
  pair.a.finish();
  EXPECT_EQ(pair.sent().syndrome, bad.want);
  EXPECT_EQ(pair.b.memory, before);
}

constexpr std::uint32_t kAll = kAllAccess;
INSTANTIATE_TEST_SUITE_P(
    All, EmulatorAccess,
    testing::Values(
        BadAccess{"write_end", 4000, 97, kAll, Opcode::write, Syndrome::remote_access},
        BadAccess{"write_start", ~std::uint64_t{0}, 8, kAll, Opcode::write,
                  Syndrome::remote_access},
        BadAccess{"write_right", 0, 8, kAll & ~Access::remote_write, Opcode::write,
                  Syndrome::remote_access},
        BadAccess{"read_end", 4096, 1, kAll, Opcode::read, Syndrome::remote_access},
        BadAccess{"read_right", 0, 8, kAll & ~Access::remote_read, Opcode::read,
                  Syndrome::remote_access},
        BadAccess{"atomic_right", 0, 8, kAll & ~Access::remote_atomic, Opcode::fetch_add,
                  Syndrome::remote_access},
        BadAccess{"atomic_end", 4092, 8, kAll, Opcode::fetch_add, Syndrome::remote_invalid_request},
        BadAccess{"atomic_unaligned", 4, 8, kAll, Opcode::fetch_add,
                  Syndrome::remote_invalid_request},
        BadAccess{"atomic_length", 0, 4, kAll, Opcode::fetch_add, Syndrome::local_qp_operation}),
    testing::PrintToStringParamName());

TEST(EmulatorErrors, LocalKeyIsCheckedBeforeAnythingIsSent) {
  Pair pair;
  pair.a.writer->start(Opcode::write, {.signalled = true}).remote(pair.b.address(), pair.b.key);
  pair.a.writer->data(pair.a.address((1 << 16) - 8), 9, pair.a.key);
  pair.a.finish();
  EXPECT_EQ(pair.sent().syndrome, Syndrome::local_protection);
  EXPECT_EQ(pair.b.pair->counters().packets_received, 0U);
}

TEST(EmulatorErrors, KeysOfAnotherDomainAreRefused) {
  Pair pair;
  pair.b.key = pair.network.nic(1).keys().create({.domain = 2,
                                                  .address = pair.b.address(),
                                                  .length = 4096,
                                                  .memory = pair.b.bytes(),
                                                  .access = kAllAccess});
  pair.a.write(pair.b, 0, 0, 8);
  EXPECT_EQ(pair.sent().syndrome, Syndrome::remote_access);
}

TEST(EmulatorErrors, RequestsOfAnotherQueuePairOrIndexAreRefused) {
  for (const int fault : {0, 1}) {
    Pair pair;
    RequestWriter wrong = *pair.a.writer;
    if (fault == 0)
      wrong = RequestWriter(const_cast<std::byte*>(pair.a.pair->attributes().ring.memory), 64, 77);
    if (fault == 1) {  // a request with an index one ahead
      wrong.start(Opcode::nop, {});
      wrong.finish();
      wrong.start(Opcode::nop, {.signalled = true});
      wrong.finish();
      std::byte* const ring = const_cast<std::byte*>(pair.a.pair->attributes().ring.memory);
      std::memcpy(ring, ring + kBlockBytes, kBlockBytes);
    } else {
      wrong.start(Opcode::nop, {.signalled = true});
      wrong.finish();
    }
    *pair.a.writer = wrong;
    pair.a.ring();
    EXPECT_EQ(pair.sent().syndrome, Syndrome::local_qp_operation) << fault;
  }
}

TEST(EmulatorErrors, ReceiverThatIsNotReadyIsAskedAgain) {
  Pair pair({}, {}, {.rnr_retry = 7, .min_rnr_timer = 1});
  pair.a.send(0, 64);
  pair.network.run_until([] { return false; }, microseconds(200));
  EXPECT_GE(pair.a.pair->counters().receiver_not_ready, 10U);
  EXPECT_LE(pair.a.pair->counters().receiver_not_ready, 20U);  // a pause is 10 us
  pair.b.post_receive(0, 64);
  EXPECT_EQ(pair.sent().syndrome, Syndrome::none);
}

TEST(EmulatorErrors, ReceiverThatIsNeverReadyEndsTheConnection) {
  Pair pair({}, {}, {.rnr_retry = 3, .min_rnr_timer = 1});
  pair.a.send(0, 64);
  EXPECT_EQ(pair.sent().syndrome, Syndrome::rnr_retry_exceeded);
  EXPECT_EQ(pair.a.pair->counters().receiver_not_ready, 4U);
}

TEST(EmulatorErrors, CountOfPausesStartsAgainAfterProgress) {
  Pair pair({}, {}, {.rnr_retry = 3, .min_rnr_timer = 1});
  for (int round = 0; round < 5; ++round) {
    pair.a.send(0, 64);
    pair.network.run_until([] { return false; }, pair.network.now() + microseconds(25));
    pair.b.post_receive(0, 64);
    ASSERT_EQ(pair.sent().syndrome, Syndrome::none) << round;
  }
}

// A network may repeat a refusal: only the responder's own refusals take retries.
TEST(EmulatorErrors, CopiesOfARefusalTakeNoRetries) {
  for (const std::uint8_t code : {AckCode::sequence_error, AckCode::rnr}) {
    for (const Ordering ordering : {Ordering::strict, Ordering::unordered}) {
      Pair pair({}, {},
                {.retry_count = 2, .rnr_retry = 2, .min_rnr_timer = 1, .ordering = ordering});
      Packet copy;
      copy.kind = PacketKind::acknowledge;
      copy.ack_code = static_cast<std::uint8_t>(code | (code == AckCode::rnr ? 1 : 0));
      copy.source = 2;
      copy.target_qp = pair.a.pair->number();
      // The first packet is lost; the refusal is one of a packet after it.
      bool lost = false;
      pair.network.drop_if([&](const Packet& packet) {
        return is_request(packet.kind) && !std::exchange(lost, true);
      });
      pair.a.write(pair.b, 0, 0, 20000);
      pair.network.run_until([&] { return lost; });
      for (int i = 0; i < 20; ++i) pair.network.nic(0).receive(Packet(copy));
      pair.network.doorbell(0, pair.a.pair->number());
      EXPECT_EQ(pair.sent().syndrome, Syndrome::none) << static_cast<int>(code);
    }
  }
}

// Codes of the InfiniBand specification; 0 is the longest pause.
TEST(EmulatorErrors, APauseHasTheLengthOfItsCode) {
  for (const auto& [code, pause] : {std::pair{0, microseconds(655'360)},
                                    {1, microseconds(10)},
                                    {12, microseconds(640)},
                                    {31, microseconds(491'520)}}) {
    Pair pair({}, {}, {.rnr_retry = 1, .min_rnr_timer = static_cast<std::uint8_t>(code)});
    pair.a.send(0, 64);
    EXPECT_EQ(pair.sent().syndrome, Syndrome::rnr_retry_exceeded);
    EXPECT_EQ(pair.a.pair->counters().receiver_not_ready, 2U);
    const Time took = pair.network.now() - pause;
    EXPECT_GE(took, Time(0)) << "code " << code;
    EXPECT_LT(took, microseconds(8)) << "code " << code;  // two round trips
  }
}

TEST(EmulatorErrors, PacketsToAWrongMacAddressDoNotArrive) {
  Pair pair({}, {}, {.ack_timeout = 10, .retry_count = 2, .misaddressed = true});
  pair.a.write(pair.b, 0, 64, 8);
  EXPECT_EQ(pair.sent().syndrome, Syndrome::retry_exceeded);
  EXPECT_EQ(pair.b.pair->counters().packets_received, 0U);
  EXPECT_EQ(pair.a.pair->counters().packets_sent, 3U);
}

TEST(EmulatorErrors, DeadPeerTakesTheRetriesAndTimeoutsThatWereSet) {
  for (const std::uint8_t retries : {0, 1, 3}) {
    Pair pair({}, {}, {.ack_timeout = 10, .retry_count = retries});
    pair.network.drop_if([](const Packet&) { return true; });
    pair.a.write(pair.b, 0, 0, 8);
    EXPECT_EQ(pair.sent().syndrome, Syndrome::retry_exceeded);
    const double timeout_us = 4.096 * 1024;
    const double took_us = std::chrono::duration<double, std::micro>(pair.network.now()).count();
    EXPECT_NEAR(took_us, timeout_us * (retries + 1), timeout_us / 10);
    EXPECT_EQ(pair.a.pair->counters().timeouts, retries + 1U);
  }
}

TEST(EmulatorErrors, TimeoutZeroWaitsForEver) {
  Pair pair({}, {}, {.ack_timeout = 0});
  pair.network.drop_if([](const Packet&) { return true; });
  pair.a.write(pair.b, 0, 0, 8);
  pair.network.run_until([] { return false; }, std::chrono::seconds(100));
  EXPECT_EQ(pair.a.sent.poll(), std::nullopt);
}

TEST(EmulatorErrors, ShortReceiveFailsBothEnds) {
  Pair pair;
  pair.b.post_receive(0, 63);
  pair.a.send(0, 64);
  EXPECT_EQ(pair.wait(pair.b.received).syndrome, Syndrome::local_length);
  EXPECT_EQ(pair.sent().syndrome, Syndrome::remote_invalid_request);
}

TEST(EmulatorErrors, FullCompletionQueueFailsTheConnection) {
  Pair pair({}, {.blocks = 64, .completions = 8});
  for (int i = 0; i < 9; ++i) pair.a.write(pair.b, 0, 0, 8);
  pair.network.run_until([] { return false; }, microseconds(100));
  EXPECT_TRUE(pair.a.sent.queue->failed());
  EXPECT_EQ(pair.a.pair->state(), QpState::error);
}

TEST(EmulatorErrors, TransitionsFollowTheSpecification) {
  VirtualNetwork network({});
  End end(network, 0);
  QueuePair& pair = *end.pair;
  EXPECT_EQ(pair.modify(QpState::ready_to_send, {}), Status::bad_qp_state);
  EXPECT_EQ(pair.modify(QpState::ready_to_receive, {}), Status::bad_qp_state);
  EXPECT_EQ(pair.modify(QpState::error, {}), Status::bad_qp_state);
  EXPECT_EQ(pair.modify(QpState::init, {}), Status::ok);
  EXPECT_EQ(pair.modify(QpState::ready_to_send, {}), Status::bad_qp_state);
  for (const Connection& bad :
       {Connection{.mtu = 1000}, Connection{.mtu = 8192}, Connection{.send_psn = 1 << 24},
        Connection{.retry_count = 8}, Connection{.remote_reads_and_atomics = 17}})
    EXPECT_EQ(pair.modify(QpState::ready_to_receive, bad), Status::bad_parameter);
  EXPECT_EQ(pair.state(), QpState::init);
  EXPECT_EQ(pair.modify(QpState::ready_to_receive, {}), Status::ok);
  EXPECT_EQ(pair.modify(QpState::ready_to_send, {}), Status::ok);
  EXPECT_EQ(pair.modify(QpState::init, {}), Status::bad_qp_state);
  EXPECT_EQ(pair.modify(QpState::reset, {}), Status::ok);
}

TEST(EmulatorErrors, NumbersOfQueuePairsStayInTheirRange) {
  NetworkOptions options;
  options.nic.lowest_queue_pair = 0x100;
  options.nic.queue_pair_numbers = 4;
  options.nic.first_queue_pair = 0x102;
  VirtualNetwork network(options);
  Nic& nic = network.nic(0);
  std::vector<std::uint32_t> numbers;
  for (int i = 0; i < 3; ++i) numbers.push_back(nic.create_queue_pair({}).object->number());
  EXPECT_EQ(numbers, (std::vector<std::uint32_t>{0x102, 0x103, 0x100}));
  EXPECT_EQ(nic.destroy_queue_pair(0x103), Status::ok);
  for (const std::uint32_t expected : {0x101U, 0x103U})  // 0x102 is in use
    EXPECT_EQ(nic.create_queue_pair({}).object->number(), expected);
  EXPECT_EQ(nic.create_queue_pair({}).status, Status::limit_exceeded);
}

TEST(EmulatorErrors, QueuesAreFreeWithoutQueuePairs) {
  VirtualNetwork network({});
  Nic& nic = network.nic(0);
  std::vector<std::byte> memory(1 << 16);
  const auto completions =
      nic.create_completion_queue({.entries = memory.data(), .size = 64}).object;
  const std::uint32_t queue = completions->number();
  const auto pair = nic.create_queue_pair({.send_completions = completions,
                                           .ring = {memory.data(), 128},
                                           .doorbell_record = memory.data() + (1 << 15)})
                        .object->number();
  EXPECT_EQ(nic.destroy_completion_queue(queue), Status::bad_resource_state);
  EXPECT_EQ(nic.destroy_queue_pair(pair), Status::ok);
  EXPECT_EQ(nic.destroy_completion_queue(queue), Status::ok);
}

// Each end's number is checked by the change of state that sets it.
TEST(EmulatorErrors, ReadsAndAtomicsInFlightHaveALimit) {
  NetworkOptions options;
  options.nic.limits.reads_and_atomics = 4;
  VirtualNetwork network(options);
  End end(network, 0);
  Connection connection{.remote_lid = 2, .remote_qp = 1, .remote_reads_and_atomics = 5};
  ASSERT_EQ(end.pair->modify(QpState::init, connection), Status::ok);
  EXPECT_EQ(end.pair->modify(QpState::ready_to_receive, connection), Status::bad_parameter);
  connection.remote_reads_and_atomics = 4;
  EXPECT_EQ(end.pair->modify(QpState::ready_to_receive, connection), Status::ok);
  connection.reads_and_atomics = 5;
  EXPECT_EQ(end.pair->modify(QpState::ready_to_send, connection), Status::bad_parameter);
  EXPECT_EQ(end.pair->state(), QpState::ready_to_receive);
  connection.reads_and_atomics = 4;
  EXPECT_EQ(end.pair->modify(QpState::ready_to_send, connection), Status::ok);
}

TEST(EmulatorErrors, QuotasAreRefusedAndLeaveNothing) {
  NetworkOptions options;
  options.nic.limits = {.queue_pairs = 2,
                        .completion_queues = 3,
                        .keys = 2,
                        .queue_blocks = 128,
                        .completion_entries = 64};
  VirtualNetwork network(options);
  Nic& nic = network.nic(0);
  std::vector<std::byte> memory(1 << 16);
  const CompletionQueueAttributes queue{.entries = memory.data(), .size = 64};
  auto shared = nic.create_completion_queue(queue).object;
  EXPECT_EQ(nic.create_completion_queue({.entries = memory.data(), .size = 128}).status,
            Status::limit_exceeded);
  EXPECT_EQ(nic.create_completion_queue({.entries = memory.data(), .size = 48}).status,
            Status::bad_parameter);
  const QueuePairAttributes pair{.send_completions = shared,
                                 .ring = {memory.data(), 128},
                                 .doorbell_record = memory.data() + (1 << 15)};
  QueuePairAttributes deep = pair;
  deep.ring.blocks = 256;
  EXPECT_EQ(nic.create_queue_pair(deep).status, Status::limit_exceeded);
  const auto first = nic.create_queue_pair(pair).object,
             second = nic.create_queue_pair(pair).object;
  EXPECT_EQ(nic.create_queue_pair(pair).status, Status::limit_exceeded);
  EXPECT_EQ(nic.queue_pairs().size(), 2U);
  EXPECT_EQ(nic.destroy_completion_queue(shared->number()), Status::bad_resource_state);
  EXPECT_EQ(nic.destroy_queue_pair(first->number()), Status::ok);
  EXPECT_EQ(nic.destroy_queue_pair(first->number()), Status::bad_resource);
  EXPECT_EQ(nic.create_queue_pair(pair).status, Status::ok);
  EXPECT_NE(nic.keys().create({}), 0U);
  const std::uint32_t last = nic.keys().create({});
  EXPECT_EQ(nic.keys().create({}), 0U);
  EXPECT_TRUE(nic.keys().destroy(last));
  EXPECT_FALSE(nic.keys().destroy(last));
  EXPECT_NE(nic.keys().create({}), 0U);
  (void)second;
}

}  // namespace
}  // namespace shoal::emulator::test
