// SPDX-License-Identifier: Apache-2.0
#include "wire/datagram.hpp"

#include <algorithm>
#include <cstring>

#include "wire/packet_format.hpp"

namespace shoal::emulator {
namespace {

/// Read in the other byte order, it is another number.
constexpr std::uint32_t kDatagramMagic = 0x5348'0000 | kWireVersion;

}  // namespace

void encode_head(const DatagramHead& head, std::byte* to) {
  static_assert(sizeof kDatagramMagic + sizeof head == kDatagramHeadBytes);
  std::memcpy(to, &kDatagramMagic, sizeof kDatagramMagic);
  std::memcpy(to + sizeof kDatagramMagic, &head, sizeof head);
}

DatagramKind decode_datagram(std::span<const std::byte> bytes, DatagramHead& head, Packet& packet) {
  std::uint32_t magic = 0;
  if (bytes.size() < kDatagramHeadBytes) return DatagramKind::invalid;
  std::memcpy(&magic, bytes.data(), sizeof magic);
  std::memcpy(&head, bytes.data() + sizeof magic, sizeof head);
  if (magic != kDatagramMagic || head.session == 0) return DatagramKind::invalid;
  if (bytes.size() == kDatagramHeadBytes) return DatagramKind::head;
  return decode_packet(bytes.subspan(kDatagramHeadBytes), packet) ? DatagramKind::packet
                                                                  : DatagramKind::invalid;
}

DatagramHead FlowControl::next(std::uint32_t session, std::size_t bytes, std::uint32_t window) {
  // Heads alone are free: they must pass where there is no room.
  if (bytes > kDatagramHeadBytes) sent_ += datagram_cost(bytes);
  if (ignored_) read_by_peer_ = sent_;
  unreported_ = 0;
  return {.session = session,
          .sequence = sent_,
          .of_session = peer_session_,
          .seen = seen_,
          .window = window};
}

void FlowControl::arrived(const DatagramHead& head, std::uint32_t session, std::size_t bytes) {
  if (head.session != peer_session_) {  // the first one, or of another process at this address
    peer_session_ = head.session;
    seen_ = head.sequence;
    unreported_ = 0;
    read_by_peer_ = sent_;
    window_ = kFirstWindow;
  }
  if (static_cast<std::int32_t>(head.sequence - seen_) > 0) seen_ = head.sequence;
  if (bytes > kDatagramHeadBytes) unreported_ += datagram_cost(bytes);
  if (head.of_session != session) return;
  const auto newly_read = static_cast<std::int32_t>(head.seen - read_by_peer_);
  if (newly_read > static_cast<std::int32_t>(sent_ - read_by_peer_)) return;
  ignored_ = false;
  if (newly_read < 0) return;  // known, or given up
  read_by_peer_ = head.seen;
  window_ = static_cast<std::int32_t>(
      std::clamp<std::uint32_t>(head.window, 1, static_cast<std::uint32_t>(kLargestWindow)));
}

}  // namespace shoal::emulator
