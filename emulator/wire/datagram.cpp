// SPDX-License-Identifier: Apache-2.0
#include "wire/datagram.hpp"

#include <algorithm>
#include <bit>
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

bool FlowControl::is_first(std::uint32_t sequence) {
  constexpr auto kUnits = static_cast<std::uint32_t>((std::uint64_t{1} << 32) / kUnit);
  static_assert(std::has_single_bit(kUnit), "the units continue where the sequences wrap around");
  const std::uint32_t unit = sequence / kUnit;
  const std::uint32_t ahead = (unit - newest_unit_) % kUnits;
  const auto word = [&](std::uint32_t of) -> std::uint64_t& {
    return arrived_[of % kUnitsKept / 64];
  };
  if (ahead < kUnits / 2) {
    if (ahead >= kUnitsKept) arrived_ = {};
    for (std::uint32_t i = 1; i <= ahead && ahead < kUnitsKept; ++i)
      word(newest_unit_ + i) &= ~(std::uint64_t{1} << (newest_unit_ + i) % 64);
    newest_unit_ = unit;
  } else if (kUnits - ahead >= kUnitsKept) {
    return false;
  }
  const std::uint64_t bit = std::uint64_t{1} << unit % 64;
  const bool first = (word(unit) & bit) == 0;
  word(unit) |= bit;
  return first;
}

bool FlowControl::arrived(const DatagramHead& head, std::uint32_t session, std::size_t bytes) {
  if (head.session != peer_session_) {  // the first one, or of another process at this address
    peer_session_ = head.session;
    seen_ = head.sequence;
    unreported_ = 0;
    read_by_peer_ = sent_;
    window_ = kFirstWindow;
    newest_unit_ = head.sequence / kUnit;
    arrived_ = {};
  }
  if (bytes > kDatagramHeadBytes && !is_first(head.sequence)) return false;
  if (static_cast<std::int32_t>(head.sequence - seen_) > 0) seen_ = head.sequence;
  if (bytes > kDatagramHeadBytes) unreported_ += datagram_cost(bytes);
  if (head.of_session != session) return true;
  const auto newly_read = static_cast<std::int32_t>(head.seen - read_by_peer_);
  if (newly_read > static_cast<std::int32_t>(sent_ - read_by_peer_)) return true;
  ignored_ = false;
  if (newly_read < 0) return true;  // known, or given up
  read_by_peer_ = head.seen;
  window_ = static_cast<std::int32_t>(
      std::clamp<std::uint32_t>(head.window, 1, static_cast<std::uint32_t>(kLargestWindow)));
  return true;
}

}  // namespace shoal::emulator
