// SPDX-License-Identifier: Apache-2.0
// Any datagrams at the two ends of a connection between emulated NICs, one of which has requests in
// flight: what is decoded is encoded as the same, flow control keeps its numbers, the NIC writes
// only to registered memory, and requests complete once.
#include <optional>
#include <vector>

#include "engine/request_writer.hpp"
#include "nic.hpp"
#include "wire/datagram.hpp"
#include "wire/packet_format.hpp"

using namespace shoal::fuzz;

namespace {

constexpr std::uint32_t kSession = 1, kKey = 0x1000;
constexpr std::uint64_t kAddress = 0x10000;

/// A write of two packets, a read, an atomic and a send.
void post(End& end) {
  RequestWriter writer(end.ring.data(), kBlocks, 1);
  writer.start(Opcode::write, {.signalled = true}).remote(kAddress, kKey);
  writer.data(kAddress, 600, kKey).finish();
  writer.start(Opcode::read, {.signalled = true}).remote(kAddress, kKey);
  writer.data(kAddress + 1024, 600, kKey).finish();
  writer.start(Opcode::fetch_add, {.signalled = true}).remote(kAddress + 8, kKey);
  writer.atomic({.opcode = Opcode::fetch_add, .swap_or_add = 1}).data(kAddress, 8, kKey).finish();
  writer.start(Opcode::send, {.signalled = true}).data(kAddress, 64, kKey).finish();
  store_be(end.record.data() + 4, std::uint32_t{writer.posted()});
}

std::vector<std::byte> encode(const Packet& packet) {
  std::vector<std::byte> bytes(kPacketHeaderBytes);
  encode_header(packet, bytes.data());
  bytes.insert(bytes.end(), packet.payload.begin(), packet.payload.end());
  return bytes;
}

/// The packet of a datagram, if it has one.
std::optional<Packet> read(std::span<const std::byte> datagram, FlowControl& flow) {
  DatagramHead head;
  Packet packet;
  const DatagramKind kind = decode_datagram(datagram, head, packet);
  if (kind == DatagramKind::invalid) return std::nullopt;
  flow.arrived(head, kSession, datagram.size());
  (void)flow.owes_head(head.window);
  const DatagramHead next = flow.next(kSession, datagram.size(), 1 << 16);
  check(next.of_session == head.session, "the answer is for the sender");
  flow.ignore();
  check(flow.has_room(), "a peer that is given up holds up nothing");
  if (kind == DatagramKind::head) return std::nullopt;
  const std::vector<std::byte> once = encode(packet);
  Packet again;
  check(decode_packet(once, again) && encode(again) == once, "a packet stays the same");
  return packet;
}

}  // namespace

// The ordering, then datagrams: a byte whose low bit names the end, two bytes of length, the bytes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  VirtualNetwork network({});
  End a(network, 0), b(network, 1);
  const auto ordering = static_cast<Ordering>(data[0] % 3);
  a.connect(2, ordering, 256);
  b.connect(1, ordering, 256);
  // Nothing of what it sends arrives: the datagrams below are all that comes.
  network.drop_if([](const Packet&) { return true; });
  post(a);
  network.doorbell(0, 1);
  std::array<FlowControl, 2> flows;
  ++data, --size;
  while (size >= 3) {
    const bool to_a = (data[0] & 1) != 0;
    const std::size_t bytes = std::min<std::size_t>(data[1] | data[2] << 8, size - 3);
    auto packet = read(std::as_bytes(std::span(data + 3, bytes)), flows[to_a ? 0 : 1]);
    data += 3 + bytes;
    size -= 3 + bytes;
    if (!packet) continue;
    packet->source = to_a ? 2 : 1;  // as a wire says
    (to_a ? a : b).nic.receive(std::move(*packet));
    network.run_until([] { return false; }, network.now() + std::chrono::microseconds(1));
  }
  network.run_until([] { return false; }, network.now() + std::chrono::milliseconds(2));
  a.check_guards();
  b.check_guards();
  check(a.queue->produced() <= 4, "every request completes once");
  return 0;
}
