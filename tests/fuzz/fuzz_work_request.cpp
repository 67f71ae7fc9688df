// SPDX-License-Identifier: Apache-2.0
// Any bytes in the send ring of an emulated queue pair, and any packet at its peer: the NIC writes
// only to registered memory, and what was posted completes or fails the queue pair.
#include "nic.hpp"

using namespace shoal::fuzz;

namespace {

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
