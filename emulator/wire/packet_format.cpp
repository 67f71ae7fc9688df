// SPDX-License-Identifier: Apache-2.0
#include "wire/packet_format.hpp"

#include <cstring>

namespace shoal::emulator {
namespace {

struct Header {
  PacketKind kind;
  std::uint8_t flags, ack_code, path;
  std::uint16_t source, target;
  std::uint32_t target_qp, psn, sequence, remote_key, length, immediate;
  std::uint64_t address;
  std::uint64_t swap_or_add, compare, swap_mask, compare_mask_or_boundary;
  Opcode atomic_opcode;
  std::uint8_t atomic_size;
  std::uint16_t reserved;
  std::uint32_t payload_bytes;
};
static_assert(sizeof(Header) == kPacketHeaderBytes);

enum Flag : std::uint8_t {
  kFirst = 1,
  kLast = 2,
  kAckRequested = 4,
  kSolicited = 8,
  kHasImmediate = 16,
  kInvalidates = 32,
  kAnyPath = 64,
};

std::uint8_t flags_of(const Packet& packet) {
  return static_cast<std::uint8_t>(
      (packet.first ? kFirst : 0) | (packet.last ? kLast : 0) |
      (packet.ack_requested ? kAckRequested : 0) | (packet.solicited ? kSolicited : 0) |
      (packet.has_immediate ? kHasImmediate : 0) | (packet.invalidates ? kInvalidates : 0) |
      (packet.any_path ? kAnyPath : 0));
}

bool is_valid(const Header& header, std::size_t payload) {
  if (header.kind > PacketKind::atomic_response || header.payload_bytes != payload ||
      payload > kMostPayloadBytes || header.psn > kPsnMask)
    return false;
  const bool atomic =
      header.kind == PacketKind::atomic_request || header.kind == PacketKind::atomic_response;
  if (!atomic) return true;
  const bool sized = header.atomic_size == 8 || header.atomic_size == 4;
  return sized && (header.kind == PacketKind::atomic_response || is_atomic(header.atomic_opcode));
}

}  // namespace

void encode_header(const Packet& packet, std::byte* to) {
  const Header header{.kind = packet.kind,
                      .flags = flags_of(packet),
                      .ack_code = packet.ack_code,
                      .path = packet.path,
                      .source = packet.source,
                      .target = packet.target,
                      .target_qp = packet.target_qp,
                      .psn = packet.psn,
                      .sequence = packet.sequence,
                      .remote_key = packet.remote_key,
                      .length = packet.length,
                      .immediate = packet.immediate,
                      .address = packet.address,
                      .swap_or_add = packet.atomic.swap_or_add,
                      .compare = packet.atomic.compare,
                      .swap_mask = packet.atomic.swap_mask,
                      .compare_mask_or_boundary = packet.atomic.compare_mask_or_boundary,
                      .atomic_opcode = packet.atomic.opcode,
                      .atomic_size = packet.atomic.size,
                      .reserved = 0,
                      .payload_bytes = static_cast<std::uint32_t>(packet.payload.size())};
  std::memcpy(to, &header, sizeof header);
}

bool decode_packet(std::span<const std::byte> bytes, Packet& packet) {
  if (bytes.size() < kPacketHeaderBytes) return false;
  Header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (!is_valid(header, bytes.size() - kPacketHeaderBytes)) return false;
  packet.kind = header.kind;
  packet.first = (header.flags & kFirst) != 0;
  packet.last = (header.flags & kLast) != 0;
  packet.ack_requested = (header.flags & kAckRequested) != 0;
  packet.solicited = (header.flags & kSolicited) != 0;
  packet.has_immediate = (header.flags & kHasImmediate) != 0;
  packet.invalidates = (header.flags & kInvalidates) != 0;
  packet.any_path = (header.flags & kAnyPath) != 0;
  packet.ack_code = header.ack_code;
  packet.path = header.path;
  packet.source = header.source;
  packet.target = header.target;
  packet.target_qp = header.target_qp;
  packet.psn = header.psn;
  packet.sequence = header.sequence;
  packet.remote_key = header.remote_key;
  packet.length = header.length;
  packet.immediate = header.immediate;
  packet.address = header.address;
  packet.atomic = {.opcode = header.atomic_opcode,
                   .size = header.atomic_size,
                   .swap_or_add = header.swap_or_add,
                   .compare = header.compare,
                   .swap_mask = header.swap_mask,
                   .compare_mask_or_boundary = header.compare_mask_or_boundary};
  packet.payload.resize(bytes.size() - kPacketHeaderBytes);
  if (!packet.payload.empty())
    std::memcpy(packet.payload.data(), bytes.data() + kPacketHeaderBytes, packet.payload.size());
  return true;
}

}  // namespace shoal::emulator
