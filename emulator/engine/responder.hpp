// SPDX-License-Identifier: Apache-2.0
// responder.hpp: executes the packets of the peer's requests.
//
// Packets are executed in the order of their PSNs. Duplicates are acknowledged again and never
// executed twice: reads and atomics are kept for replay. Where the ordering allows it, writes are
// placed when they arrive, and other packets that arrive early are held.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "engine/receive_queue.hpp"
#include "engine/services.hpp"

namespace shoal::emulator {

class QueuePair;

class Responder {
 public:
  explicit Responder(QueuePair& owner) : qp_(owner) {}

  void start();
  void reset();
  void receive(Packet&& packet);
  bool wants_to_send() const { return !replies_.empty(); }
  bool send_one();
  /// Completes posted receives as flushed.
  void flush();

 private:
  /// A read or atomic that may be asked for again.
  struct Replay {
    std::uint32_t psn = 0, packets = 1;
    bool atomic = false;
    std::uint64_t old_value = 0;
    std::uint8_t size = 8;
  };
  /// A packet, or the packets of a read, that are to be sent, in this order.
  struct Reply {
    PacketKind kind = PacketKind::acknowledge;
    std::uint32_t psn = 0;
    std::uint8_t ack_code = AckCode::ack;
    std::uint64_t old_value = 0;
    std::uint8_t size = 8;  ///< of an atomic
    std::uint32_t remote_key = 0;
    std::uint64_t address = 0, bytes = 0;  ///< of a read: what remains
    bool first = true;
  };
  /// A packet that came before its turn.
  struct Early {
    Packet packet;
    bool placed = false;  ///< its payload is in memory
  };

  void receive_early(Packet&& packet);
  void receive_again(const Packet& packet);
  void drain_early();
  /// Executes the packet whose turn it is. False where it was refused, or has to come again.
  bool execute(const Packet& packet, bool placed);
  bool execute_write(const Packet& packet, bool placed);
  bool execute_send(const Packet& packet);
  bool execute_read(const Packet& packet);
  bool execute_atomic(const Packet& packet);
  /// AckCode::ack, or why the packet may not access the memory that it names.
  std::uint8_t check(const Packet& packet) const;
  void place_write(const Packet& packet) const;
  /// True if the bus may delay writes to the memory of a key that exists.
  bool is_relaxed(std::uint32_t key) const;
  bool take_receive();
  bool finish_receive(const Packet& packet);
  void keep(const Replay& replay);
  void reply_to_read(const Packet& packet);
  void acknowledge();
  /// Refuses the packet whose turn it is. Codes other than RNR and sequence_error end the
  /// connection. Returns false.
  bool refuse(std::uint8_t code);
  bool fail_receive(Syndrome syndrome, std::uint8_t code);
  std::uint32_t packets_of_read(const Packet& packet) const;

  QueuePair& qp_;
  std::uint32_t expected_ = 0;            ///< PSN
  std::uint32_t messages_ = 0;            ///< completed (MSN)
  bool nak_sent_ = false;                 ///< for `expected_`
  std::uint64_t position_ = 0;            ///< PSNs executed since the start
  std::map<std::uint64_t, Early> early_;  ///< by position
  std::deque<Replay> replays_;
  std::deque<Reply> replies_;
  std::optional<ReceiveQueue::Request> receiving_;  ///< the request of the current message
  std::uint32_t received_bytes_ = 0;                ///< of the current message
};

}  // namespace shoal::emulator
