// SPDX-License-Identifier: Apache-2.0
// message.hpp: what PEs send each other as active messages: small transfers, and whatever must be
// one step at the target.
//
// UCX promises no order among active messages, nor between them and RMA. So messages to a PE are
// numbered, and the target applies them in the order of their numbers; a message that must not be
// seen before earlier RMA is sent after a flush (C1). The target acknowledges lazily: a count of
// the messages that it has applied.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "shoal/operation.hpp"

namespace shoal::transport::ucx {

enum class Kind : std::uint8_t {
  // Numbered: applied in order.
  put,     ///< `count` elements of `element` bytes, `stride` apart at the target; then the signal,
           ///< where `then_signal`
  get,     ///< the same elements, answered with their bytes
  atomic,  ///< answered with the value before
  signal,
  hello,    ///< the sender's pattern is in this PE's scratch memory: answered with whether it is
  nothing,  ///< asks for an acknowledgement
  // Not numbered.
  answer,
  acknowledgement,
  goodbye,  ///< the sender has what it waited for and will not answer any more
};

/// The longest transfer that goes as a message: about a token row. Up to here a copy at each end
/// costs less than the round trip of a flush (over TCP 14336 bytes and a signal take 160 us one
/// way, by RMA 240 us, on a loaded machine).
inline constexpr std::size_t kPayloadBytes = 16384;

/// In front of every message. PEs of a world have one byte order: they share the layout of the heap
/// as well.
struct Header {
  std::uint64_t world = 0;     ///< of the secret of the world: others are not listened to
  std::uint64_t sequence = 0;  ///< from 1, by sender and target; 0 for kinds that are not numbered
  std::uint64_t applied =
      0;  ///< the receiver's messages up to this one have been applied at the sender
  std::uint64_t offset = 0;
  std::uint64_t operand = 0;  ///< also the value of a signal, and of an answer
  std::uint64_t compare = 0;
  std::uint64_t signal_offset = 0;
  std::uint64_t stride = 0;
  std::uint64_t request = 0;  ///< of the PE that waits for the answer
  std::uint32_t pe = 0;       ///< of the sender
  std::uint32_t element = 0;
  std::uint32_t count = 0;
  std::uint32_t payload = 0;  ///< bytes that follow
  Kind kind = Kind::nothing;
  AtomicOp atomic = AtomicOp::fetch;
  SignalOp signal = SignalOp::set;
  std::uint8_t width = 0;
  bool then_signal = false;
  bool acknowledge = false;  ///< at once
};

constexpr bool numbered(Kind kind) {
  return kind < Kind::answer;
}

/// A message in memory that UCX may send from.
struct Message {
  Header header;
  std::array<std::byte, kPayloadBytes> payload;

  std::size_t bytes() const { return sizeof header + header.payload; }
};
static_assert(offsetof(Message, payload) == sizeof(Header));

}  // namespace shoal::transport::ucx
