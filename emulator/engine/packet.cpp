// SPDX-License-Identifier: Apache-2.0
#include "engine/packet.hpp"

namespace shoal::emulator {

std::size_t Packet::wire_bytes() const {
  // Link header 8, base transport header 12, checksums 6.
  std::size_t bytes = 26 + payload.size();
  switch (kind) {
    case PacketKind::write:
      bytes += first || any_path ? 16 : 0;
      break;
    case PacketKind::read_request:
      bytes += 16;
      break;
    case PacketKind::atomic_request:
      bytes += 28;
      break;
    case PacketKind::acknowledge:
    case PacketKind::read_response:
      bytes += 4;
      break;
    case PacketKind::atomic_response:
      bytes += 12;
      break;
    case PacketKind::send:
      break;
  }
  return bytes + (has_immediate ? 4 : 0);
}

}  // namespace shoal::emulator
