// SPDX-License-Identifier: Apache-2.0
// peer.hpp: the protocol state of one connection. All of it belongs to the holder of the engine's
// lock.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "transport/message/message.hpp"

namespace shoal::transport::message {

/// Counts the operations of one call that still use its local memory.
struct Batch {
  std::uint32_t pending = 0;
  bool failed = false;  ///< one of them has failed, and with it the peer
};

/// Destination of the reply to a request. A call that gives up clears `target` and `batch`.
struct Expected {
  std::byte* target = nullptr;  ///< a word of `width` bytes, or elements
  std::uint8_t width = 0;       ///< 0: elements
  std::size_t element = 0, count = 0, stride = 0;
  Batch* batch = nullptr;  ///< nullptr: only quiet waits for it
  bool waiting = false;
  std::uint32_t sequence = 0;
};

enum class Direction : std::uint8_t { write, read };

struct Peer {
  Pe pe = 0;
  bool known = false;      ///< its address has been accepted: its messages are read and answered
  bool connected = false;  ///< the handshake has succeeded
  std::string failure;     ///< why the connection is lost; empty while it works
  bool gone = false;       ///< it has ended or left: no other transport would reach it
  bool lost = false;       ///< failed while operations were in flight; the next quiet reports it

  // Requests to it.
  std::uint32_t window = 1;        ///< most without acknowledgement
  std::uint32_t sent = 0;          ///< number of the newest
  std::uint32_t counted = 0;       ///< number of the newest that a quiet waits for
  std::uint32_t acknowledged = 0;  ///< all up to this one have been applied
  std::uint32_t asked = 0;         ///< the newest whose acknowledgement is on its way
  std::vector<Expected> expected;  ///< replies, by number modulo window
  std::uint32_t replies_awaited = 0;

  // RMA to it.
  std::uint32_t writes = 0;  ///< requests of the network in flight
  std::uint32_t reads = 0;
  bool fenced = false;  ///< the next write waits until all earlier operations are complete
  // Since the last message to it, where the network hides RMA (Traits).
  std::size_t unannounced = 0;             ///< bytes of RMA requests
  std::uint32_t requests_before_look = 0;  ///< at the clock, for the time since then
  std::chrono::steady_clock::time_point announced{};

  // Requests from it.
  std::uint32_t received = 0;  ///< number of the newest; all up to it have been applied
  std::uint32_t reported = 0;  ///< the newest that it knows to be applied
  bool acknowledgement_due = false;
  std::deque<Message> unsent;  ///< replies and welcomes that the network has not taken yet
  bool listed = false;         ///< in Engine::replying_
  bool probing = false;        ///< a probe has neither arrived nor failed
  std::map<std::uint32_t, std::vector<std::byte>> early;  ///< requests that overtook others

  std::size_t rails = 1;          ///< connections to it; the network sets it in open()
  std::size_t home = 0;           ///< rail of messages and short transfers
  std::size_t newest_spread = 0;  ///< rail of the newest transfer that was spread

  // Handshake, as bits by rail.
  std::uint32_t welcomed = 0;  ///< the peer found this PE's pattern
  std::uint32_t refused = 0;   ///< it did not

  /// The newest request from it that may be acknowledged: none whose reply is still unsent.
  std::uint32_t applied() const noexcept {
    for (const Message& message : unsent)
      if (message.kind == Kind::reply) return message.sequence - 1;
    return received;
  }

  /// Counts an RMA request that the network has started or finished.
  void start(Direction direction, Batch* batch) noexcept {
    ++(direction == Direction::write ? writes : reads);
    if (batch != nullptr) ++batch->pending;
  }
  void finish(Direction direction, Batch* batch) noexcept {
    --(direction == Direction::write ? writes : reads);
    if (batch != nullptr) --batch->pending;
  }
};

}  // namespace shoal::transport::message
