// SPDX-License-Identifier: Apache-2.0
// ring.hpp: the memory that messages travel through. No receive queue is involved.
//
// Each connection has a ring of slots at the receiver. The sender writes a message to a slot (RDMA
// write) and then adds 1 to the ring's counter `arrived` (RDMA atomic) on the same queue pair. An
// atomic starts after all earlier writes of its queue pair are placed, whatever order the network
// delivers packets in, so the receiver reads only what the counter covers. When half of the ring is
// free, the receiver adds that number to the sender's counter `freed`, again by an RDMA atomic.
//
// Only NICs change the counters and only processors read them, so atomics need to be atomic among
// those of one NIC only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/message/message.hpp"

namespace shoal::transport::verbs {

inline constexpr std::size_t kSlots = 64;
inline constexpr std::size_t kPayloadBytes = 184;

struct RingSlot {
  std::uint64_t bytes;  ///< of the message and its payload
  std::byte data[sizeof(message::Message) + kPayloadBytes];
};
static_assert(sizeof(RingSlot) == 256);

/// Counters that peers' NICs advance.
struct Counters {
  std::uint64_t arrived = 0;  ///< messages in this PE's ring
  std::uint64_t freed = 0;    ///< slots of the peer's ring that it has read
};

/// Offsets in the memory of the rings of `connections` connections.
struct RingLayout {
  std::size_t connections;

  static constexpr std::size_t kRingBytes = kSlots * sizeof(RingSlot);
  /// Offset at which atomics put the previous value, which has no reader.
  static constexpr std::size_t sink() { return 0; }
  static constexpr std::size_t counters(std::size_t i) { return 64 + i * sizeof(Counters); }
  static constexpr std::size_t arrived(std::size_t i) { return counters(i); }
  static constexpr std::size_t freed(std::size_t i) {
    return counters(i) + offsetof(Counters, freed);
  }
  constexpr std::size_t incoming(std::size_t i) const {
    return (counters(connections) + 255) / 256 * 256 + i * kRingBytes;
  }
  /// Messages on their way, slot by slot as in the ring of the peer.
  constexpr std::size_t outgoing(std::size_t i) const { return incoming(connections + i); }
  constexpr std::size_t bytes() const { return incoming(2 * connections); }
};

}  // namespace shoal::transport::verbs
