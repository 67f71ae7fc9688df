// SPDX-License-Identifier: Apache-2.0
// rig.hpp: two NICs in virtual time with a connected pair of queues, for the tests of the emulator.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "engine/big_endian.hpp"
#include "engine/nic.hpp"
#include "engine/request_writer.hpp"
#include "wire/virtual_network.hpp"

namespace shoal::emulator::test {

/// A CQE as a client reads it.
struct Seen {
  CqeOpcode opcode;
  Syndrome syndrome;
  std::uint16_t index;
  std::uint32_t bytes, immediate;
};

/// A completion queue in this process, polled by owner bit.
class Poller {
 public:
  explicit Poller(Nic& nic, std::uint32_t size = 1024) : entries_(size * kCqeBytes), size_(size) {
    for (std::uint32_t i = 0; i < size; ++i) entries_[i * kCqeBytes + 63] = std::byte{0xf0};
    queue = nic.create_completion_queue(
                   {.entries = entries_.data(), .size = size, .doorbell_record = record_.data()})
                .object;
  }
  std::optional<Seen> poll() {
    const std::byte* const at = &entries_[(consumed_ & (size_ - 1)) * kCqeBytes];
    const auto last = static_cast<std::uint8_t>(at[63]);
    if (last >> 4 == 15 || (last & 1) != (consumed_ / size_ & 1)) return std::nullopt;
    Seen seen{static_cast<CqeOpcode>(last >> 4), Syndrome::none, load_be<std::uint16_t>(at + 60),
              load_be<std::uint32_t>(at + 44), 0};
    std::memcpy(&seen.immediate, at + 36, 4);
    if (last >> 4 >= 13) seen.syndrome = static_cast<Syndrome>(at[55]);
    store_be(record_.data(), static_cast<std::uint32_t>(++consumed_ & kPsnMask));
    return seen;
  }
  std::shared_ptr<CompletionQueue> queue;

 private:
  std::vector<std::byte> entries_;
  std::uint32_t size_;
  alignas(8) std::array<std::byte, 8> record_{};
  std::uint64_t consumed_ = 0;
};

constexpr std::uint32_t kAllAccess =
    Access::local_write | Access::remote_write | Access::remote_read | Access::remote_atomic;

struct EndOptions {
  std::uint32_t blocks = 64;
  std::uint32_t receives = 64;
  std::size_t memory = 1 << 16;
  std::uint32_t access = kAllAccess;
  std::uint32_t completions = 1024;
};

/// One end: its memory, rings and queue pair on a NIC.
class End {
 public:
  End(VirtualNetwork& network, std::uint32_t nic, const EndOptions& options = {})
      : network_(network),
        nic_(nic),
        memory((options.memory + 7) / 8),
        ring_(options.blocks * kBlockBytes),
        receive_ring_(options.receives * kSegmentBytes),
        sent(network.nic(nic), options.completions),
        received(network.nic(nic), options.completions) {
    Nic& device = network.nic(nic);
    key = device.keys().create({.domain = 1,
                                .address = address(),
                                .length = options.memory,
                                .memory = bytes(),
                                .access = options.access});
    receives_ = std::make_shared<ReceiveQueue>(
        0, ReceiveQueueAttributes{.memory = receive_ring_.data(),
                                  .size = options.receives,
                                  .stride = kSegmentBytes,
                                  .doorbell_record = record_.data()});
    const auto made = device.create_queue_pair({.domain = 1,
                                                .send_completions = sent.queue,
                                                .receive_completions = received.queue,
                                                .ring = {ring_.data(), options.blocks},
                                                .doorbell_record = record_.data(),
                                                .receives = receives_});
    pair = made.object;
    writer.emplace(ring_.data(), options.blocks, pair->number());
  }

  std::byte* bytes() { return reinterpret_cast<std::byte*>(memory.data()); }
  std::uint64_t address(std::size_t offset = 0) {
    return reinterpret_cast<std::uint64_t>(memory.data()) + offset;
  }
  void post_receive(std::size_t offset, std::uint32_t length) {
    std::byte* const to =
        &receive_ring_[posted_receives_ % (receive_ring_.size() / kSegmentBytes) * kSegmentBytes];
    store_be(to, length);
    store_be(to + 4, key);
    store_be(to + 8, address(offset));
    store_be(record_.data(), static_cast<std::uint32_t>(++posted_receives_ & 0xffff));
  }
  void ring() {
    store_be(record_.data() + 4, std::uint32_t{writer->posted()});
    network_.doorbell(nic_, pair->number());
  }
  void connect(const End& peer, Connection connection = {}) {
    connection.remote_lid = static_cast<std::uint16_t>(peer.nic_ + 1);
    connection.remote_qp = peer.pair->number();
    if (connection.access == 0) connection.access = kAllAccess;
    ASSERT_EQ(pair->modify(QpState::init, connection), Status::ok);
    ASSERT_EQ(pair->modify(QpState::ready_to_receive, connection), Status::ok);
    ASSERT_EQ(pair->modify(QpState::ready_to_send, connection), Status::ok);
  }

  // Requests; each rings.
  std::uint16_t write(End& peer, std::size_t from, std::size_t to, std::uint32_t length,
                      RequestFlags flags = {.signalled = true}) {
    writer->start(Opcode::write, flags).remote(peer.address(to), peer.key);
    writer->data(address(from), length, key);
    return finish();
  }
  std::uint16_t read(End& peer, std::size_t from, std::size_t to, std::uint32_t length,
                     RequestFlags flags = {.signalled = true}) {
    writer->start(Opcode::read, flags).remote(peer.address(from), peer.key);
    writer->data(address(to), length, key);
    return finish();
  }
  std::uint16_t atomic(End& peer, const AtomicOperands& operands, std::size_t at,
                       std::size_t result, RequestFlags flags = {.signalled = true}) {
    writer->start(operands.opcode, flags, modifier_of(operands)).remote(peer.address(at), peer.key);
    writer->atomic(operands).data(address(result), operands.size, key);
    return finish();
  }
  std::uint16_t send(std::size_t from, std::uint32_t length, Opcode opcode = Opcode::send,
                     RequestFlags flags = {.signalled = true}) {
    writer->start(opcode, flags).data(address(from), length, key);
    return finish();
  }
  std::uint16_t finish() {
    const std::uint16_t index = writer->finish();
    ring();
    return index;
  }

 private:
  VirtualNetwork& network_;
  std::uint32_t nic_;

 public:
  std::vector<std::uint64_t> memory;
  std::uint32_t key = 0;

 private:
  std::vector<std::byte> ring_, receive_ring_;
  alignas(8) std::array<std::byte, 8> record_{};
  std::shared_ptr<ReceiveQueue> receives_;
  std::uint32_t posted_receives_ = 0;

 public:
  Poller sent, received;
  std::shared_ptr<QueuePair> pair;
  std::optional<RequestWriter> writer;
};

/// Two connected ends.
struct Pair {
  explicit Pair(const NetworkOptions& network_options = {}, const EndOptions& options = {},
                const Connection& connection = {})
      : network(network_options), a(network, 0, options), b(network, 1, options) {
    a.connect(b, connection);
    b.connect(a, connection);
  }
  Seen sent() { return wait(a.sent); }
  Seen wait(Poller& poller) {
    std::optional<Seen> seen;
    network.run_until([&] { return (seen = poller.poll()).has_value(); });
    EXPECT_TRUE(seen.has_value()) << "nothing completes";
    return seen.value_or(Seen{CqeOpcode::invalid, Syndrome::none, 0, 0, 0});
  }
  VirtualNetwork network;
  End a, b;
};

}  // namespace shoal::emulator::test
