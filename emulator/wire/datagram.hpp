// SPDX-License-Identifier: Apache-2.0
// datagram.hpp: what a UDP datagram between two emulated NICs holds, and the flow control in it.
//
// A head, then a packet or nothing. The head counts what one process has sent to the other, and
// says how far the other end's datagrams have been read, so that a sender never has more in flight
// than the receiver's socket has room for. Flow control does not repeat anything: queue pairs do.
//
// Datagrams are counted by their *cost*: what the kernel charges to a socket's buffer for them, at
// most. The counts also tell copies of a datagram, which are dropped: a queue pair answers every
// copy of a request, so that a network that repeats datagrams would keep it from the new ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/packet.hpp"

namespace shoal::emulator {

constexpr std::size_t kDatagramHeadBytes = 24;

struct DatagramHead {
  std::uint32_t session = 0;   ///< random number of the sending process, not 0
  std::uint32_t sequence = 0;  ///< cost of all datagrams to this peer, this one included
  /// Session of the peer whose datagrams `seen` counts; 0: none has arrived.
  std::uint32_t of_session = 0;
  std::uint32_t seen = 0;    ///< highest sequence of the peer's datagrams
  std::uint32_t window = 0;  ///< cost that the peer may have in flight
};

/// A datagram without a packet carries the head alone.
enum class DatagramKind : std::uint8_t { invalid, head, packet };

void encode_head(const DatagramHead& head, std::byte* to);

/// Reads a datagram of this version of the emulator, from a host with the same byte order.
DatagramKind decode_datagram(std::span<const std::byte> bytes, DatagramHead& head, Packet& packet);

/// The cost of a datagram of `bytes`.
constexpr std::uint32_t datagram_cost(std::size_t bytes) {
  return static_cast<std::uint32_t>(512 + 2 * bytes);
}

/// Both directions of the flow control with one peer.
class FlowControl {
 public:
  /// True if a datagram may be sent: there is room at the peer, or it has been silent for long.
  bool has_room() const {
    return ignored_ || static_cast<std::int32_t>(sent_ - read_by_peer_) < window_;
  }
  /// The peer has been silent although it has no room: what is in flight is lost, or the peer is
  /// gone. Datagrams are sent without regard to room until it speaks.
  void ignore() { ignored_ = true; }

  /// The head of the next datagram, which has `bytes` in all. `window` is granted to the peer.
  DatagramHead next(std::uint32_t session, std::size_t bytes, std::uint32_t window);
  /// A datagram with this head and of `bytes` has arrived; this process has the number `session`.
  /// False for a copy of one that arrived before, or one that is too late to tell.
  bool arrived(const DatagramHead& head, std::uint32_t session, std::size_t bytes);
  /// True if the peer should be sent a head, as it has not heard for a part of its window.
  bool owes_head(std::uint32_t window) const { return unreported_ >= window / 4; }

 private:
  static constexpr std::int32_t kFirstWindow = 1 << 16, kLargestWindow = 1 << 30;
  /// Sequences of two datagrams with packets are at least so far apart.
  static constexpr std::uint32_t kUnit = datagram_cost(0);
  /// Datagrams that are older by so many units are dropped: 16 MiB.
  static constexpr std::uint32_t kUnitsKept = 1 << 15;

  bool is_first(std::uint32_t sequence);

  std::uint32_t sent_ = 0, read_by_peer_ = 0;
  std::int32_t window_ = kFirstWindow;
  bool ignored_ = false;
  std::uint32_t peer_session_ = 0, seen_ = 0, unreported_ = 0;
  std::uint32_t newest_unit_ = 0;
  std::array<std::uint64_t, kUnitsKept / 64> arrived_{};  ///< a bit per unit
};

}  // namespace shoal::emulator
