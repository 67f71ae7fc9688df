// SPDX-License-Identifier: Apache-2.0
// Any bytes in the send ring of an emulated queue pair, and any packet at its peer: the NIC writes
// only to registered memory, and what was posted completes or fails the queue pair.
#include <algorithm>
#include <array>
#include <cstring>

#include "engine/big_endian.hpp"
#include "engine/nic.hpp"
#include "fuzz.hpp"
#include "wire/virtual_network.hpp"

using namespace shoal::emulator;
using shoal::fuzz::check;

namespace {

constexpr std::size_t kBlocks = 16, kMemory = 4096, kGuard = 256;
constexpr std::byte kUntouched{0x5a};

/// A queue pair with registered memory between guards. Its keys and addresses are the same in every
/// run, so that the fuzzer can learn them: addresses start at 0x10000.
struct End {
  End(VirtualNetwork& network, std::uint32_t index) : nic(network.nic(index)) {
    memory.fill(kUntouched);
    nic.keys().create(
        {.address = 0x10000, .length = kMemory, .memory = memory.data() + kGuard, .access = 0xf});
    queue =
        nic.create_completion_queue({.entries = entries.data(), .size = 64, .ignore_overrun = true})
            .object;
    pair = nic.create_queue_pair({.send_completions = queue,
                                  .receive_completions = queue,
                                  .ring = {ring.data(), kBlocks},
                                  .doorbell_record = record.data()})
               .object;
  }
  void connect(std::uint16_t lid, Ordering ordering) {
    const Connection connection{.remote_lid = lid,
                                .remote_qp = 1,
                                .ack_timeout = 1,
                                .retry_count = 1,
                                .access = 0xf,
                                .ordering = ordering};
    for (const QpState state : {QpState::init, QpState::ready_to_receive, QpState::ready_to_send})
      check(pair->modify(state, connection) == Status::ok, "the transition is allowed");
  }
  void check_guards() const {
    const auto untouched = [](std::byte byte) { return byte == kUntouched; };
    check(std::all_of(memory.begin(), memory.begin() + kGuard, untouched), "the guard before");
    check(std::all_of(memory.end() - kGuard, memory.end(), untouched), "the guard behind");
  }

  Nic& nic;
  std::array<std::byte, kMemory + 2 * kGuard> memory;
  std::array<std::byte, kBlocks * kBlockBytes> ring{};
  std::array<std::byte, 64 * kCqeBytes> entries{};
  alignas(8) std::array<std::byte, 8> record{};
  std::shared_ptr<CompletionQueue> queue;
  std::shared_ptr<QueuePair> pair;
};

Packet packet_of(const std::uint8_t* data) {
  Packet packet;
  packet.kind = static_cast<PacketKind>(data[0] % 7);
  packet.first = (data[1] & 1) != 0;
  packet.last = (data[1] & 2) != 0;
  packet.ack_requested = (data[1] & 4) != 0;
  packet.has_immediate = (data[1] & 8) != 0;
  packet.invalidates = (data[1] & 16) != 0;
  packet.ack_code = data[2];
  packet.target = 2;
  packet.target_qp = 1;
  packet.psn = data[3];
  packet.remote_key = 0x1000 + (data[4] & 1);
  packet.length = data[5] * 64U;
  packet.address = 0x10000 + data[6] * 64U - 64;
  packet.atomic.size = (data[7] & 1) != 0 ? 4 : 8;
  packet.atomic.opcode = (data[7] & 2) != 0 ? Opcode::fetch_add : Opcode::masked_compare_swap;
  packet.payload.resize(packet.kind == PacketKind::atomic_request ? 0 : packet.length % 4097);
  return packet;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  VirtualNetwork network({});
  End a(network, 0), b(network, 1);
  const auto ordering = static_cast<Ordering>(data[0] % 3);
  a.connect(2, ordering);
  b.connect(1, ordering);
  const std::uint8_t posted = data[1] & 31;
  data += 2;
  size -= 2;
  const std::size_t in_ring = std::min(size, a.ring.size());
  std::memcpy(a.ring.data(), data, in_ring);
  store_be(a.record.data() + 4, std::uint32_t{posted});
  network.doorbell(0, 1);
  constexpr Time kLimit = std::chrono::milliseconds(2);
  network.run_until([] { return false; }, kLimit);
  for (std::size_t at = in_ring; at + 8 <= size; at += 8) b.nic.receive(packet_of(data + at));
  network.run_until([] { return false; }, 2 * kLimit);
  a.check_guards();
  b.check_guards();
  check(a.queue->produced() <= 64, "no more completions than blocks and receives");
  return 0;
}
