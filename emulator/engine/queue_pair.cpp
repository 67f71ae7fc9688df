// SPDX-License-Identifier: Apache-2.0
#include "engine/queue_pair.hpp"

#include <array>
#include <bit>
#include <utility>

#include "engine/big_endian.hpp"
#include "engine/relaxed_writes.hpp"

namespace shoal::emulator {
namespace {

bool is_transition(QpState from, QpState to) {
  if (to == QpState::reset || to == QpState::error) return true;
  switch (from) {
    case QpState::reset:
      return to == QpState::init;
    case QpState::init:
      return to == QpState::init || to == QpState::ready_to_receive;
    case QpState::ready_to_receive:
    case QpState::ready_to_send:
      return to == QpState::ready_to_send;
    default:
      return false;
  }
}

/// For a change to `to`: ready_to_receive does not set reads_and_atomics.
bool is_valid(const Connection& connection, QpState to, const NicLimits& limits) {
  return std::has_single_bit(connection.mtu) && connection.mtu >= 256 && connection.mtu <= 4096 &&
         connection.send_psn <= kPsnMask && connection.receive_psn <= kPsnMask &&
         connection.ack_timeout < 32 && connection.retry_count < 8 && connection.rnr_retry < 8 &&
         connection.min_rnr_timer < 32 &&
         (to == QpState::ready_to_receive ||
          connection.reads_and_atomics <= limits.reads_and_atomics) &&
         connection.remote_reads_and_atomics <= limits.reads_and_atomics;
}

}  // namespace

Time rnr_pause(std::uint8_t code) {
  constexpr std::array<std::uint32_t, 32> kMicroseconds = {
      655360, 10,    20,    30,    40,    60,     80,     120,    160,    240,   320,
      480,    640,   960,   1280,  1920,  2560,   3840,   5120,   7680,   10240, 15360,
      20480,  30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520};
  return std::chrono::microseconds(kMicroseconds[code & 0x1f]);
}

QueuePair::QueuePair(std::uint32_t number, const QueuePairAttributes& attributes,
                     const Services& services)
    : number_(number),
      attributes_(attributes),
      services_(services),
      requester_(*this),
      responder_(*this) {}

Status QueuePair::modify(QpState state, const Connection& connection) {
  if (!is_transition(state_, state)) return Status::bad_qp_state;
  const bool connects = state == QpState::ready_to_receive || state == QpState::ready_to_send;
  if (connects && !is_valid(connection, state, services_.options.limits))
    return Status::bad_parameter;
  if (state == QpState::error) {
    if (state_ == QpState::reset) return Status::bad_qp_state;
    fail();
    return Status::ok;
  }
  const QpState before = state_.exchange(state);
  connection_ = connection;
  trace(TraceEvent::Kind::state, static_cast<std::uint32_t>(state));
  if (state == QpState::reset) {
    requester_.reset();
    responder_.reset();
    if (attributes_.receives && !attributes_.receives->attributes().shared)
      attributes_.receives->reset();
  } else if (state == QpState::ready_to_receive) {
    responder_.start();
  } else if (state == QpState::ready_to_send && before != state) {
    requester_.start();
    doorbell();
  }
  return Status::ok;
}

void QueuePair::doorbell() {
  if (attributes_.ring.blocks == 0 || attributes_.doorbell_record == nullptr) return;
  if (state_ != QpState::ready_to_send && state_ != QpState::error) return;
  requester_.posted(static_cast<std::uint16_t>(load_shared_be32(attributes_.doorbell_record + 4)));
  if (state_ == QpState::error) flush();
}

bool QueuePair::wants_to_send() const {
  if (responder_.wants_to_send()) return true;
  return state_ == QpState::ready_to_send && requester_.wants_to_send();
}

bool QueuePair::send_one() {
  if (responder_.wants_to_send()) return responder_.send_one();
  return state_ == QpState::ready_to_send && requester_.send_one();
}

void QueuePair::receive(Packet&& packet) {
  if (state_ != QpState::ready_to_receive && state_ != QpState::ready_to_send) return;
  // Such as one for an earlier owner of this number.
  if (packet.source != connection_.remote_lid) return;
  ++counters_.packets_received;
  counters_.bytes_received += packet.payload.size();
  trace(TraceEvent::Kind::received, packet.psn, packet.kind,
        static_cast<std::uint32_t>(packet.payload.size()));
  if (is_request(packet.kind)) return responder_.receive(std::move(packet));
  if (state_ != QpState::ready_to_send) return;
  if (packet.kind == PacketKind::acknowledge)
    requester_.acknowledged(packet);
  else
    requester_.responded(std::move(packet));
}

void QueuePair::run_timers() {
  if (state_ == QpState::ready_to_send) requester_.run_timers();
}

void QueuePair::complete_send(const WorkRequest& request, Syndrome syndrome, std::uint32_t bytes) {
  const bool failed = syndrome != Syndrome::none;
  if (failed) ++counters_.errors;
  if (!failed && !request.signalled) return;
  ++counters_.completions;
  trace(TraceEvent::Kind::completion, static_cast<std::uint32_t>(syndrome));
  if (!attributes_.send_completions) return;
  const bool stored = attributes_.send_completions->push(
      {.opcode = failed ? CqeOpcode::request_error : CqeOpcode::request,
       .syndrome = syndrome,
       .sent = request.opcode,
       .qp_number = number_,
       .remote_qp = connection_.remote_qp,
       .user_index = attributes_.user_index,
       .bytes = bytes,
       .request_index = request.index,
       .time = now()});
  if (!stored && state_ != QpState::error) fail();
}

void QueuePair::complete_receive(const Completion& completion) {
  ++counters_.completions;
  if (completion.syndrome != Syndrome::none) ++counters_.errors;
  if (!attributes_.receive_completions) return;
  services_.relaxed.flush();
  Completion entry = completion;
  entry.qp_number = number_;
  entry.remote_qp = connection_.remote_qp;
  const bool shared = attributes_.receives && attributes_.receives->attributes().shared;
  entry.user_index = shared ? attributes_.receives->number() : attributes_.user_index;
  entry.time = now();
  if (!attributes_.receive_completions->push(entry) && state_ != QpState::error) fail();
}

void QueuePair::fail() {
  if (state_ == QpState::error) return;
  state_ = QpState::error;
  trace(TraceEvent::Kind::state, static_cast<std::uint32_t>(state()));
  if (attributes_.ring.blocks != 0 && attributes_.doorbell_record != nullptr)
    requester_.posted(
        static_cast<std::uint16_t>(load_shared_be32(attributes_.doorbell_record + 4)));
  flush();
  if (on_error) on_error();
}

void QueuePair::flush() {
  requester_.flush();
  responder_.flush();
}

void QueuePair::transmit(Packet&& packet, bool again) {
  packet.source = services_.options.lid;
  packet.target = connection_.remote_lid;
  packet.target_qp = connection_.remote_qp;
  packet.path = static_cast<std::uint8_t>(number_);
  ++counters_.packets_sent;
  counters_.bytes_sent += packet.payload.size();
  if (again) ++counters_.resent;
  trace(again ? TraceEvent::Kind::resent : TraceEvent::Kind::sent, packet.psn, packet.kind,
        static_cast<std::uint32_t>(packet.payload.size()));
  if (connection_.misaddressed) return;  // the network has no port for it
  services_.wire.send(std::move(packet));
}

void QueuePair::trace(TraceEvent::Kind kind, std::uint32_t value, PacketKind packet,
                      std::uint32_t bytes) const {
  if (!services_.options.trace) return;
  services_.options.trace({.kind = kind,
                           .time = now(),
                           .nic = services_.options.lid,
                           .qp_number = number_,
                           .value = value,
                           .packet = packet,
                           .bytes = bytes,
                           .counters = kind == TraceEvent::Kind::destroyed ? &counters_ : nullptr});
}

}  // namespace shoal::emulator
