// SPDX-License-Identifier: Apache-2.0
// Two NICs in threads of their own, joined by UDP wires whose sockets hold little: both write to
// each other at once, one of them pauses, other threads end their sleep. Flow control holds
// up the senders; what is lost all the same is sent again.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "engine/big_endian.hpp"
#include "engine/nic.hpp"
#include "engine/request_writer.hpp"
#include "wire/impaired_wire.hpp"
#include "wire/udp_wire.hpp"

namespace shoal::emulator::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::uint32_t kBlocks = 64, kCompletions = 64, kWrites = 3000, kBytes = 4096;
constexpr std::size_t kSlots = 48;  // places of writes in the memory of the peer

NicOptions options_for(const UdpWire& wire) {
  NicOptions options;
  options.lowest_queue_pair = options.first_queue_pair = (wire.slot() << UdpWire::kSlotShift) + 1;
  options.queue_pair_numbers = 16;
  return options;
}

/// A NIC with one queue pair. Its thread alone uses it.
class Side {
 public:
  Side(const UdpOptions& options, const Impairments& impairments)
      : udp_(new UdpWire(options)),
        wire_(std::unique_ptr<LiveWire>(udp_), impairments),
        nic_(options_for(*udp_), wire_),
        from_(kSlots * kBytes),
        to_(kSlots * kBytes) {
    from_key_ = register_memory(from_);
    to_key_ = register_memory(to_);
    queue_ = nic_.create_completion_queue(
                     {.entries = entries_.data(), .size = kCompletions, .ignore_overrun = true})
                 .object;
    pair_ = nic_.create_queue_pair({.send_completions = queue_,
                                    .ring = {ring_.data(), kBlocks},
                                    .doorbell_record = record_.data()})
                .object;
  }

  void connect(const Side& peer, std::uint8_t timeout) {
    const Connection connection{
        .remote_lid = udp_->peer(peer.udp_->address(), UdpWire::slot_of(peer.pair_->number())),
        .remote_qp = peer.pair_->number(),
        .ack_timeout = timeout,
        .access = ~0U};
    for (const QpState state : {QpState::init, QpState::ready_to_receive, QpState::ready_to_send})
      ASSERT_EQ(pair_->modify(state, connection), Status::ok);
    peer_address_ = reinterpret_cast<std::uint64_t>(peer.to_.data());
    peer_key_ = peer.to_key_;
  }

  /// Until all writes are complete here and at the peer. Pauses now and then if `slow`.
  void run(bool slow, std::atomic<int>& unfinished) {
    RequestWriter writer(ring_.data(), kBlocks, pair_->number());
    const auto end = Clock::now() + std::chrono::seconds(60);
    std::uint32_t posted = 0;
    bool done = false;
    for (std::uint32_t round = 0; unfinished != 0 && Clock::now() < end; ++round) {
      const auto complete = static_cast<std::uint32_t>(queue_->produced());
      if (posted < kWrites && posted - complete < kSlots) {
        fill(posted);
        const std::size_t at = posted++ % kSlots * kBytes;
        writer.start(Opcode::write, {.signalled = true}).remote(peer_address_ + at, peer_key_);
        writer.data(reinterpret_cast<std::uint64_t>(&from_[at]), kBytes, from_key_);
        writer.finish();
        store_be(record_.data() + 4, std::uint32_t{writer.posted()});
        nic_.doorbell(pair_->number());
      }
      bool worked = wire_.poll(64, [&](Packet&& packet) { nic_.receive(std::move(packet)); });
      worked |= nic_.progress();
      worked |= wire_.flush();
      if (!worked) wire_.sleep(std::chrono::microseconds(100));
      if (slow && round % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (!done && complete == kWrites) --unfinished, done = true;
    }
    EXPECT_TRUE(done) << queue_->produced() << " of " << kWrites;
  }
  /// The last writes of the peer are in memory.
  void expect_received() const {
    for (std::uint32_t i = kWrites - kSlots; i < kWrites; ++i)
      for (std::size_t at = 0; at < kBytes; at += 512)
        EXPECT_EQ(to_[i % kSlots * kBytes + at], static_cast<std::byte>(i + at / 512));
  }
  void wake() { wire_.wake(); }
  Counters counters() const { return nic_.counters(); }

 private:
  std::uint32_t register_memory(std::vector<std::byte>& memory) {
    return nic_.keys().create({.address = reinterpret_cast<std::uint64_t>(memory.data()),
                               .length = memory.size(),
                               .memory = memory.data(),
                               .access = Access::local_write | Access::remote_write});
  }
  void fill(std::uint32_t number) {
    for (std::size_t at = 0; at < kBytes; at += 512)
      from_[number % kSlots * kBytes + at] = static_cast<std::byte>(number + at / 512);
  }

  UdpWire* const udp_;
  ImpairedWire wire_;
  Nic nic_;
  std::vector<std::byte> from_, to_;
  alignas(64) std::array<std::byte, kBlocks * kBlockBytes> ring_{};
  alignas(64) std::array<std::byte, kCompletions * kCqeBytes> entries_{};
  alignas(8) std::array<std::byte, 8> record_{};
  std::uint32_t from_key_ = 0, to_key_ = 0, peer_key_ = 0;
  std::uint64_t peer_address_ = 0;
  std::shared_ptr<CompletionQueue> queue_;
  std::shared_ptr<QueuePair> pair_;
};

/// Runs both sides; returns the packets that one of them has sent, and sent again.
Counters run_both(const Impairments& impairments, std::uint8_t timeout) {
  const UdpOptions options{.interface = "127.0.0.1",
                           .first_port = static_cast<std::uint16_t>(31000 + getpid() % 1000),
                           .slots = 8,
                           .buffer_bytes = 1 << 16};
  Side a(options, impairments), b(options, impairments);
  a.connect(b, timeout);
  b.connect(a, timeout);
  std::atomic<int> unfinished{2};
  std::thread of_b([&] { b.run(true, unfinished); });
  std::thread waker([&] {
    while (unfinished != 0) {
      a.wake();
      b.wake();
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
  });
  a.run(false, unfinished);
  of_b.join();
  waker.join();
  a.expect_received();
  b.expect_received();
  return a.counters();
}

TEST(EmulatorUdp, SmallSocketsLoseLittle) {
  const Counters counters = run_both({}, 16);
  EXPECT_GE(counters.packets_sent, kWrites);
  // None, unless this machine lets a thread wait for more than 20 ms. Without flow control, most.
  EXPECT_LE(counters.resent, counters.packets_sent / 10);
}

TEST(EmulatorUdp, LostPacketsAreSentAgain) {
  const Counters counters = run_both({.loss = 0.01, .duplication = 0.01}, 11);  // 8 ms
  EXPECT_GT(counters.resent, 0U);
}

}  // namespace
}  // namespace shoal::emulator::test
