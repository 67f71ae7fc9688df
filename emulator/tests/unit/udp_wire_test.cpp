// SPDX-License-Identifier: Apache-2.0
// Packets between UDP wires on the loopback interface, here all in one process, and the flow
// control in their datagrams.
#include "wire/udp_wire.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <thread>

#include "wire/packet_format.hpp"

namespace shoal::emulator::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::uint32_t kLoopback = 0x7f000001;

class UdpWireTest : public ::testing::Test {
 protected:
  UdpWireTest() {
    options.interface = "127.0.0.1";
    options.first_port = static_cast<std::uint16_t>(15000 + getpid() % 2000 * 8);
    options.slots = 8;
  }

  /// Sends to `to`, which knows `from` as well.
  static Packet packet(UdpWire& from, UdpWire& to, std::uint32_t psn, std::size_t bytes = 0) {
    Packet made;
    made.kind = PacketKind::write;
    (void)to.peer(from.address(), from.slot());
    made.target = from.peer(to.address(), to.slot());
    made.psn = psn;
    made.payload.assign(bytes, static_cast<std::byte>(psn));
    return made;
  }
  /// Returns the packets that arrive within a while: `count`, or fewer.
  static std::vector<Packet> receive(LiveWire& wire, std::size_t count) {
    std::vector<Packet> packets;
    const auto deliver = [&](Packet&& arrived) { packets.push_back(std::move(arrived)); };
    const auto end = Clock::now() + std::chrono::seconds(count == 0 ? 0 : 10);
    do {
      wire.poll(1000, deliver);
    } while (packets.size() < count && Clock::now() < end);
    return packets;
  }
  static std::string error_of(const UdpOptions& options) {
    try {
      const UdpWire wire(options);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "no error";
  }

  UdpOptions options;
};

TEST_F(UdpWireTest, PacketsArriveInOrderAndWhole) {
  UdpWire a(options), b(options);
  EXPECT_NE(a.slot(), b.slot());
  EXPECT_EQ(a.address(), kLoopback);
  EXPECT_EQ(a.mtu(), 4096U);
  EXPECT_TRUE(a.link_up());
  std::uint32_t sent = 0;
  for (std::uint32_t round = 0; round < 40; ++round) {
    // Many of one size travel together; one of another size ends the group.
    const std::size_t bytes = round * 421 % (kMostPayloadBytes + 1);
    const std::uint32_t count = 3 + round % 9;
    const auto bytes_of = [&](std::uint32_t i) {
      return i == 0 || i + 1 == count ? bytes / 2 : bytes;
    };
    for (std::uint32_t i = 0; i < count; ++i) a.send(packet(a, b, sent + i, bytes_of(i)));
    EXPECT_TRUE(a.busy());
    EXPECT_TRUE(a.flush());
    EXPECT_FALSE(a.busy());
    const std::vector<Packet> got = receive(b, count);
    ASSERT_EQ(got.size(), count) << round;
    for (std::uint32_t i = 0; i < count; ++i) {
      EXPECT_EQ(got[i].psn, sent + i);
      EXPECT_EQ(got[i].source, b.peer(a.address(), a.slot()));
      EXPECT_EQ(got[i].payload, Payload(bytes_of(i), static_cast<std::byte>(sent + i)));
    }
    sent += count;
  }
  EXPECT_EQ(a.dropped() + b.dropped(), 0U);
}

TEST_F(UdpWireTest, AWireReachesItself) {
  UdpWire a(options);
  a.send(packet(a, a, 7, 100));
  a.flush();
  EXPECT_EQ(receive(a, 1).size(), 1U);
}

TEST_F(UdpWireTest, ASlowReceiverHoldsUpTheSenderAndLosesNothing) {
  options.buffer_bytes = 1 << 16;
  UdpWire a(options), b(options);
  std::uint32_t sent = 0, expected = 0;
  int full = 0;
  const auto end = Clock::now() + std::chrono::seconds(20);
  while (expected < 2000 && Clock::now() < end) {
    while (sent < 2000 && a.ready()) a.send(packet(a, b, sent++, 1024));
    full += sent < 2000 ? 1 : 0;
    a.flush();
    for (const Packet& got : receive(b, 0)) EXPECT_EQ(got.psn, expected++);
    (void)receive(a, 0);  // reads how far the receiver is
  }
  EXPECT_EQ(expected, 2000U);
  EXPECT_GT(full, 5);
  EXPECT_EQ(a.dropped() + b.dropped(), 0U);
}

TEST_F(UdpWireTest, ASilentPeerDoesNotHoldUpOthers) {
  UdpWire a(options), silent(options), c(options);
  for (int i = 0; i < 100000 && a.ready(); ++i) a.send(packet(a, silent, 0, 4096));
  EXPECT_LT(a.next_event(), kNever);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  (void)receive(a, 0);
  EXPECT_TRUE(a.ready());
  for (int i = 0; i < 1000; ++i) a.send(packet(a, silent, 0, 4096));  // as to one that has ended
  EXPECT_TRUE(a.ready());
  a.send(packet(a, c, 7));
  a.flush();
  EXPECT_EQ(receive(c, 1).size(), 1U);
  // It speaks again: its room counts again.
  (void)receive(silent, 1);
  silent.send(packet(silent, a, 1));
  silent.flush();
  EXPECT_EQ(receive(a, 1).size(), 1U);
  for (int i = 0; i < 100000 && a.ready(); ++i) a.send(packet(a, silent, 0, 4096));
  EXPECT_FALSE(a.ready());
}

TEST_F(UdpWireTest, AProcessThatTakesOverAPortIsHeard) {
  options.slots = 2;
  UdpWire a(options);
  for (int round = 0; round < 3; ++round) {
    UdpWire b(options);  // the other port
    for (int i = 0; i < 200; ++i) {
      const auto psn = static_cast<std::uint32_t>(i);
      ASSERT_TRUE(a.ready() && b.ready()) << round << " " << i;
      a.send(packet(a, b, psn, 512));
      b.send(packet(b, a, psn, 512));
      a.flush();
      b.flush();
      ASSERT_EQ(receive(b, 1).size(), 1U) << round << " " << i;
      ASSERT_EQ(receive(a, 1).size(), 1U) << round << " " << i;
    }
  }
}

TEST_F(UdpWireTest, DatagramsOfStrangersAreDropped) {
  UdpWire a(options), b(options);
  Packet sent;
  sent.target = b.peer(a.address(), a.slot());  // a does not know b
  b.send(std::move(sent));
  b.flush();
  const int other = socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(kLoopback);
  to.sin_port = htons(static_cast<std::uint16_t>(options.first_port + a.slot()));
  const char text[] = "no packet at all, but longer than a head";
  EXPECT_GT(sendto(other, text, sizeof text, 0, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  close(other);
  const auto end = Clock::now() + std::chrono::seconds(10);
  while (a.dropped() < 2 && Clock::now() < end) EXPECT_TRUE(receive(a, 0).empty());
  EXPECT_EQ(a.dropped(), 2U);
}

TEST_F(UdpWireTest, PacketsThatCannotTravelAreDropped) {
  UdpWire a(options), b(options);
  Packet unknown = packet(a, b, 1);
  unknown.target = 17;
  a.send(std::move(unknown));
  a.send(packet(a, b, 1, kMostPayloadBytes + 1));
  EXPECT_EQ(a.dropped(), 2U);
  EXPECT_FALSE(a.busy());
  EXPECT_EQ(a.peer(kLoopback, 8), 0) << "slots are 0 to 7";
}

TEST_F(UdpWireTest, ErrorsNameWhatIsThere) {
  options.slots = 2;
  {
    const UdpWire a(options), b(options);
    EXPECT_NE(error_of(options).find("all 2 ports of 127.0.0.1 from"), std::string::npos);
  }
  options.interface = "nowhere0";
  const std::string error = error_of(options);
  EXPECT_NE(error.find("no interface is or has \"nowhere0\""), std::string::npos) << error;
  EXPECT_NE(error.find("(127.0.0.1)"), std::string::npos) << error;
  options.slots = 65;
  EXPECT_NE(error_of(options).find("1 to 64 slots"), std::string::npos);
}

TEST_F(UdpWireTest, SleepEndsWithAPacketAndByAnotherThread) {
  UdpWire a(options), b(options);
  const Packet sent = packet(a, b, 1);
  const auto start = Clock::now();
  std::thread sender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    a.send(Packet(sent));
    a.flush();
  });
  EXPECT_TRUE(b.sleep(std::chrono::seconds(20)));
  sender.join();
  EXPECT_EQ(receive(b, 1).size(), 1U);
  std::atomic<bool> awake{false};
  std::thread waker([&] {
    while (!awake) b.wake();  // one before the sleep begins has no effect
  });
  EXPECT_TRUE(b.sleep(std::chrono::seconds(20)));
  awake = true;
  waker.join();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(15));
  EXPECT_FALSE(a.sleep(std::chrono::milliseconds(1)));
}

// A network that repeats every datagram must not cost queue pairs work, such as an answer to each.
TEST_F(UdpWireTest, CopiesOfADatagramAreDropped) {
  UdpWire a(options);
  const int repeater = socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(kLoopback);
  at.sin_port = htons(static_cast<std::uint16_t>(options.first_port + (a.slot() + 1) % 8));
  ASSERT_EQ(bind(repeater, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
  ASSERT_NE(a.peer(kLoopback, (a.slot() + 1) % 8), 0);
  at.sin_port = htons(static_cast<std::uint16_t>(options.first_port + a.slot()));
  FlowControl flow;
  std::vector<std::vector<std::byte>> sent;
  constexpr std::uint32_t kSent = 50;
  for (std::uint32_t psn = 0; psn < kSent; ++psn) {
    Packet packet;
    packet.kind = PacketKind::write;
    packet.psn = psn;
    std::vector<std::byte>& bytes =
        sent.emplace_back(std::size_t{kDatagramHeadBytes + kPacketHeaderBytes});
    encode_head(flow.next(7, bytes.size(), 1 << 16), bytes.data());
    encode_header(packet, bytes.data() + kDatagramHeadBytes);
  }
  std::swap(sent[20], sent[30]);  // those that overtake others are no copies
  std::vector<std::uint32_t> got;
  for (std::uint32_t i = 0; i < kSent; ++i) {
    for (const std::uint32_t which : {i, i, i / 2, 0U}) {
      EXPECT_GT(sendto(repeater, sent[which].data(), sent[which].size(), 0,
                       reinterpret_cast<const sockaddr*>(&at), sizeof at),
                0);
    }
    const auto end = Clock::now() + std::chrono::seconds(10);
    while (got.size() + a.dropped() < (i + 1) * std::size_t{4} && Clock::now() < end)
      for (const Packet& packet : receive(a, 0)) got.push_back(packet.psn);
  }
  close(repeater);
  EXPECT_EQ(a.dropped(), 3U * kSent);
  ASSERT_EQ(got.size(), kSent);
  std::sort(got.begin(), got.end());
  for (std::uint32_t psn = 0; psn < kSent; ++psn) EXPECT_EQ(got[psn], psn);
}

TEST(FlowControl, CountsAcrossTheEndOfItsNumbers) {
  constexpr std::uint32_t kA = 11, kB = 22, kWindow = 100'000;
  constexpr std::size_t kBytes = 4000;
  FlowControl a, b;
  for (std::uint64_t i = 0; i < 700'000; ++i) {  // 6 GB
    ASSERT_TRUE(a.has_room()) << i;
    const DatagramHead head = a.next(kA, kBytes, kWindow);
    ASSERT_TRUE(b.arrived(head, kB, kBytes)) << i;
    ASSERT_FALSE(b.arrived(head, kB, kBytes)) << i;
    if (b.owes_head(kWindow)) a.arrived(b.next(kB, kDatagramHeadBytes, kWindow), kA, 24);
  }
  int more = 0;
  for (; a.has_room(); ++more) (void)a.next(kA, kBytes, kWindow);
  EXPECT_LE(more, static_cast<int>(kWindow / datagram_cost(kBytes)) + 1);
}

TEST(FlowControl, BelievesOnlyWhatCanBe) {
  FlowControl a;
  std::uint32_t sent = 0;
  const auto fill = [&] {
    while (a.has_room()) sent = a.next(11, 4000, 1 << 16).sequence;
  };
  const auto told = [&](std::uint32_t of_session, std::uint32_t seen) {
    a.arrived({.session = 22, .of_session = of_session, .seen = seen, .window = 1 << 20}, 11,
              kDatagramHeadBytes);
    return a.has_room();
  };
  fill();
  EXPECT_TRUE(told(12, 0)) << "of a peer that was not known: what was sent is read";
  fill();
  EXPECT_FALSE(told(12, sent)) << "meant for an earlier process";
  EXPECT_FALSE(told(11, sent + 1)) << "more than was sent";
  EXPECT_TRUE(told(11, sent));
  fill();
  a.ignore();
  EXPECT_TRUE(a.has_room());
}

TEST(Datagram, BytesThatAreNoDatagramAreRefused) {
  std::vector<std::byte> bytes(kDatagramHeadBytes + kPacketHeaderBytes);
  DatagramHead head{.session = 1, .sequence = 2, .of_session = 3, .seen = 4, .window = 5}, read;
  Packet packet;
  const auto kind = [&](std::size_t length) {
    return decode_datagram(std::span(bytes).first(length), read, packet);
  };
  encode_head(head, bytes.data());
  encode_header(packet, bytes.data() + kDatagramHeadBytes);
  EXPECT_EQ(kind(bytes.size()), DatagramKind::packet);
  EXPECT_EQ(read.window, 5U);
  EXPECT_EQ(kind(kDatagramHeadBytes), DatagramKind::head);
  EXPECT_EQ(kind(kDatagramHeadBytes - 1), DatagramKind::invalid);
  EXPECT_EQ(kind(bytes.size() - 1), DatagramKind::invalid);
  head.session = 0;
  encode_head(head, bytes.data());
  EXPECT_EQ(kind(bytes.size()), DatagramKind::invalid);
  head.session = 1;
  encode_head(head, bytes.data());
  bytes[0] ^= std::byte{1};  // another version
  EXPECT_EQ(kind(bytes.size()), DatagramKind::invalid);
}

}  // namespace
}  // namespace shoal::emulator::test
