// SPDX-License-Identifier: Apache-2.0
// queue_pair.hpp: a reliable connection: attributes, states, and its two halves.
//
// The requester executes the work requests of the send queue; the responder executes the packets of
// the peer. Both halves transmit: requests and responses. Semantics: InfiniBand Architecture
// Specification, volume 1, chapters 9 (transport) and 10 (states).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "engine/completion_queue.hpp"
#include "engine/receive_queue.hpp"
#include "engine/requester.hpp"
#include "engine/responder.hpp"

namespace shoal::emulator {

/// Fixed at creation.
struct QueuePairAttributes {
  std::uint32_t domain = 0;
  std::shared_ptr<CompletionQueue> send_completions = nullptr;
  std::shared_ptr<CompletionQueue> receive_completions = nullptr;
  SendRing ring = {};  ///< no blocks: without a send queue
  /// be32 counter of posted receives, then be32 counter of posted send blocks.
  std::byte* doorbell_record = nullptr;
  std::shared_ptr<ReceiveQueue> receives = nullptr;  ///< its own, a shared one, or none
  std::uint32_t user_index = 0;
};

/// Set by state transitions.
struct Connection {
  std::uint16_t remote_lid = 0;
  std::uint32_t remote_qp = 0;
  std::uint32_t mtu = 4096;  ///< bytes of payload per packet: 256 to 4096
  std::uint32_t send_psn = 0, receive_psn = 0;
  std::uint8_t ack_timeout = 14;                ///< 4.096 us * 2^ack_timeout; 0: none
  std::uint8_t retry_count = 7, rnr_retry = 7;  ///< rnr_retry 7: without end
  std::uint8_t min_rnr_timer = 12;              ///< code of a receiver's pause
  std::uint8_t reads_and_atomics = 16;          ///< that this end sends ahead
  std::uint8_t remote_reads_and_atomics = 16;   ///< that this end answers
  std::uint32_t access = 0;                     ///< Access bits granted to the peer
  Ordering ordering = Ordering::strict;
  bool misaddressed = false;  ///< its packets have a MAC address that is not the remote port's
};

/// Pause that a receiver demands by an RNR code (IBTA, table 45).
Time rnr_pause(std::uint8_t code);

class QueuePair {
 public:
  QueuePair(std::uint32_t number, const QueuePairAttributes& attributes, const Services& services);

  std::uint32_t number() const { return number_; }
  const QueuePairAttributes& attributes() const { return attributes_; }
  const Connection& connection() const { return connection_; }
  /// Any thread may ask.
  QpState state() const { return state_.load(std::memory_order_relaxed); }
  const Counters& counters() const { return counters_; }

  /// Moves to `state` with `connection`. Status::bad_qp_state for a transition that the
  /// specification does not have, bad_parameter for values outside their range; then nothing
  /// changes.
  Status modify(QpState state, const Connection& connection);

  /// Reads the doorbell record. In the error state, flushes what was posted.
  void doorbell();
  /// True if it has a packet to send now.
  bool wants_to_send() const;
  /// Sends one packet; false where there was none after all.
  bool send_one();
  void receive(Packet&& packet);
  /// Earliest timer; kNever without one.
  Time next_timer() const { return requester_.next_timer(); }
  void run_timers();
  /// Called when it has entered the error state and both queues are flushed.
  std::function<void()> on_error;
  /// Called when a request of the peer is refused with this AckCode, before the error state.
  std::function<void(std::uint8_t)> on_refused;

  /// The NIC's notes about it: its place among those that are ready to send, and when the NIC looks
  /// at its timer.
  struct Schedule {
    bool ready = false;
    std::uint64_t rank = 0;  ///< while `ready`
    Time look = kNever;      ///< not after next_timer()
  };
  Schedule schedule;

  // For the two halves.
  void complete_send(const WorkRequest& request, Syndrome syndrome, std::uint32_t bytes);
  void complete_receive(const Completion& completion);
  /// Enters the error state and flushes both queues.
  void fail();
  void transmit(Packet&& packet, bool again);
  void trace(TraceEvent::Kind kind, std::uint32_t value, PacketKind packet = PacketKind::send,
             std::uint32_t bytes = 0) const;
  Time now() const { return services_.wire.now(); }
  Counters& count() { return counters_; }
  const Services& services() const { return services_; }

 private:
  void flush();

  const std::uint32_t number_;
  const QueuePairAttributes attributes_;
  const Services services_;
  Connection connection_;
  std::atomic<QpState> state_{QpState::reset};
  Counters counters_;
  Requester requester_;
  Responder responder_;
};

}  // namespace shoal::emulator
