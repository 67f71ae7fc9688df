// SPDX-License-Identifier: Apache-2.0
// requester.hpp: executes the send queue of a queue pair.
//
// Requests become messages, messages packets with consecutive PSNs. A message stays in a list until
// it is acknowledged, and requests complete in order. After a loss the requester goes back to the
// first packet that is not acknowledged. Where the responder keeps packets that arrive early, a
// packet that it reports missing is sent alone.
//
// A loss that no later packet reveals is found by a timer. The timeout of the queue pair is long,
// as a peer may be late; so the oldest packet is sent again long before
// (NicOptions::first_resend). Progress after that tells what else is missing.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "engine/services.hpp"
#include "engine/work_request.hpp"

namespace shoal::emulator {

class QueuePair;

class Requester {
 public:
  explicit Requester(QueuePair& owner) : qp_(owner) {}

  /// A new connection: PSNs, counters and timers start again; the send queue is kept.
  void start();
  void reset();
  /// The doorbell record names blocks up to `end` (16 bits).
  void posted(std::uint16_t end) { posted_ = end; }
  bool wants_to_send() const;
  bool send_one();
  void acknowledged(const Packet& packet);
  void responded(Packet&& packet);
  Time next_timer() const;
  void run_timers();
  /// Completes all requests as flushed.
  void flush();

 private:
  struct Message {
    WorkRequest request;
    std::uint32_t first_psn = 0;
    std::uint32_t packets = 0;  ///< PSNs; 0: nothing travels
    std::uint32_t sent = 0;     ///< PSNs sent in this pass
    std::uint64_t bytes = 0;
    Syndrome error = Syndrome::none;  ///< found before anything was sent
    std::uint32_t arrived = 0;        ///< response packets
    std::vector<bool> has_arrived;    ///< by response packet
    bool expects_response() const {
      return request.opcode == Opcode::read || is_atomic(request.opcode);
    }
    bool responses_complete() const { return arrived == packets; }
  };

  bool may_send(const Message& message) const;
  /// True if another read or atomic may be in flight.
  bool has_replay_room() const;
  /// Sends again where an answer to `psn` shows that the response to the oldest message is lost.
  void check_lost_response(std::uint32_t psn);
  /// Reads the request at fetched_.
  Syndrome take_request(WorkRequest& request);
  /// Appends the next request as a message.
  void fetch();
  /// Moves the cursor past what needs not be sent.
  void skip_done();
  Syndrome check(const WorkRequest& request) const;
  Message* find(std::uint32_t psn);
  /// Sends the packet of `message` that has PSN first_psn + `number`; a read asks for what has not
  /// arrived. False where local memory is no longer accessible.
  bool send_packet(const Message& message, std::uint32_t number);
  bool resend_one();
  void complete_front();
  bool is_complete(const Message& message) const;
  /// Sends everything again from `psn` on.
  void go_back(std::uint32_t psn);
  void go_back_to(std::size_t message);
  bool use_retry();
  /// The oldest packet in flight, and the oldest without an acknowledgement, are to be sent again.
  void resend_oldest();
  /// Something new was acknowledged or answered.
  void progressed();
  void refused(const Packet& packet);
  void fail_at(std::uint32_t psn, Syndrome syndrome);
  void fail_front(Syndrome syndrome);
  /// All PSNs before `end` are acknowledged.
  void advance(std::uint32_t end);
  void restart_timer();
  void set_resend();
  void stop_timer();
  std::uint32_t position() const;  ///< PSN that is sent next

  QueuePair& qp_;
  std::deque<Message> messages_;  ///< oldest first
  std::size_t cursor_ = 0;        ///< the message that is being sent
  std::uint16_t fetched_ = 0, posted_ = 0;
  std::uint32_t next_psn_ = 0;        ///< of the next new message
  std::uint32_t highest_ = 0;         ///< one after the last PSN ever sent
  std::uint32_t acked_ = 0;           ///< first PSN that is not acknowledged
  std::deque<std::uint32_t> resend_;  ///< PSNs that the peer misses, for orderings but strict
  std::optional<std::uint32_t> reported_missing_;  ///< PSN of the last such report
  std::uint32_t proves_loss_from_ = 0;             ///< see check_lost_response
  std::uint32_t responses_due_ = 0;                ///< reads and atomics in flight
  std::uint32_t since_request_ = 0;  ///< packets since the last request for an acknowledgement
  std::uint8_t retries_ = 0, rnr_retries_ = 0;
  Time timeout_ = kNever;    ///< of the oldest packet in flight
  Time resend_at_ = kNever;  ///< of the oldest packet, before the timeout
  Time resend_after_{0};     ///< how long before resend_at_ the last progress or resend was
  /// Since an early resend: what was sent until then may be lost. Equal to acked_ or before it
  /// otherwise.
  std::uint32_t doubted_until_ = 0;
  Time paused_until_ = kNever;  ///< by an RNR; kNever: not paused
};

}  // namespace shoal::emulator
