// SPDX-License-Identifier: Apache-2.0
#include "engine/responder.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "engine/queue_pair.hpp"
#include "engine/relaxed_writes.hpp"

namespace shoal::emulator {
namespace {

/// Packets further ahead are dropped: half of the PSN range less what may be in flight.
constexpr std::int32_t kMostEarly = 1 << 20;

std::uint32_t access_of(PacketKind kind) {
  switch (kind) {
    case PacketKind::write:
      return Access::remote_write;
    case PacketKind::read_request:
      return Access::remote_read;
    default:
      return Access::remote_atomic;
  }
}

template <typename Word>
std::uint64_t exchange(std::byte* at, const AtomicOperands& operands, bool global) {
  std::atomic_ref word(*reinterpret_cast<Word*>(at));
  Word old_value = word.load(std::memory_order_acquire);
  if (!global) {  // a CPU's store in between is lost
    word.store(static_cast<Word>(apply_atomic(operands, old_value)), std::memory_order_release);
    return old_value;
  }
  while (!word.compare_exchange_weak(
      old_value, static_cast<Word>(apply_atomic(operands, old_value)), std::memory_order_acq_rel))
    continue;
  return old_value;
}

}  // namespace

void Responder::start() {
  expected_ = qp_.connection().receive_psn;
  messages_ = 0;
  position_ = 0;
  nak_sent_ = false;
}

void Responder::reset() {
  early_.clear();
  replays_.clear();
  replies_.clear();
  receiving_.reset();
  received_bytes_ = 0;
}

std::uint32_t Responder::packets_of_read(const Packet& packet) const {
  const std::uint32_t mtu = qp_.connection().mtu;
  return std::max(1U, (packet.length + mtu - 1) / mtu);
}

void Responder::receive(Packet&& packet) {
  const std::int32_t distance = psn_distance(packet.psn, expected_);
  if (distance < 0) return receive_again(packet);
  if (distance > 0) return receive_early(std::move(packet));
  nak_sent_ = false;
  if (execute(packet, false)) drain_early();
}

void Responder::receive_early(Packet&& packet) {
  ++qp_.count().out_of_order;
  qp_.trace(TraceEvent::Kind::out_of_order, packet.psn, packet.kind);
  const std::int32_t distance = psn_distance(packet.psn, expected_);
  if (qp_.connection().ordering != Ordering::strict) {
    if (distance > kMostEarly) return;
    const std::uint64_t position = position_ + static_cast<std::uint64_t>(distance);
    if (early_.contains(position)) {
      ++qp_.count().duplicates;
      return;
    }
    Early early;
    if (packet.kind == PacketKind::write && !packet.has_immediate) {
      // Refused when its turn comes, where it may not be placed.
      early.placed = check(packet) == AckCode::ack;
      if (early.placed) {
        packet.length = static_cast<std::uint32_t>(packet.payload.size());
        place_write(packet);
        packet.payload.clear();
      }
    }
    early.packet = std::move(packet);
    early_.emplace(position, std::move(early));
    if (early_.size() < qp_.services().options.reorder_limit) return;
  }
  if (nak_sent_) return;
  nak_sent_ = true;
  replies_.push_back({.psn = expected_, .ack_code = AckCode::sequence_error});
}

void Responder::drain_early() {
  for (auto next = early_.begin(); next != early_.end(); next = early_.begin()) {
    if (next->first > position_) return;
    const Early early = std::move(next->second);
    const bool due = next->first == position_;
    early_.erase(next);
    if (due && !execute(early.packet, early.placed)) return;
  }
}

void Responder::receive_again(const Packet& packet) {
  ++qp_.count().duplicates;
  qp_.trace(TraceEvent::Kind::duplicate, packet.psn, packet.kind);
  if (packet.kind == PacketKind::write || packet.kind == PacketKind::send) return acknowledge();
  for (const Replay& replay : replays_) {
    const std::int32_t number = psn_distance(packet.psn, replay.psn);
    if (replay.atomic != (packet.kind == PacketKind::atomic_request) || number < 0 ||
        number >= static_cast<std::int32_t>(replay.packets))
      continue;
    if (replay.atomic)
      replies_.push_back({.kind = PacketKind::atomic_response,
                          .psn = packet.psn,
                          .old_value = replay.old_value,
                          .size = replay.size});
    else if (check(packet) == AckCode::ack)
      reply_to_read(packet);
    return;
  }
}

std::uint8_t Responder::check(const Packet& packet) const {
  if (qp_.services().options.timing_only) return AckCode::ack;
  const std::uint32_t access = access_of(packet.kind);
  if ((qp_.connection().access & access) == 0) return AckCode::access_error;
  std::uint64_t bytes = packet.payload.size();
  if (packet.kind == PacketKind::read_request) bytes = packet.length;
  if (packet.kind == PacketKind::atomic_request) {
    bytes = packet.atomic.size;
    if (packet.address % bytes != 0) return AckCode::invalid_request;
  }
  if (bytes == 0) return AckCode::ack;
  return qp_.services().keys.translate(packet.remote_key, qp_.attributes().domain, packet.address,
                                       bytes, access) != nullptr
             ? AckCode::ack
             : AckCode::access_error;
}

bool Responder::execute(const Packet& packet, bool placed) {
  bool done = false;
  std::uint32_t psns = 1;
  switch (packet.kind) {
    case PacketKind::write:
      done = execute_write(packet, placed);
      break;
    case PacketKind::send:
      done = execute_send(packet);
      break;
    case PacketKind::read_request:
      psns = packets_of_read(packet);
      done = execute_read(packet);
      break;
    default:
      done = execute_atomic(packet);
  }
  if (!done) return false;
  qp_.trace(TraceEvent::Kind::executed, packet.psn, packet.kind,
            placed ? packet.length : static_cast<std::uint32_t>(packet.payload.size()));
  expected_ = psn_add(expected_, psns);
  position_ += psns;
  if (packet.last) messages_ = psn_add(messages_, 1);
  if (packet.ack_requested && (packet.kind == PacketKind::write || packet.kind == PacketKind::send))
    acknowledge();
  return true;
}

void Responder::place_write(const Packet& packet) const {
  const Services& services = qp_.services();
  if (services.options.timing_only || packet.payload.empty()) return;
  std::byte* const to =
      services.keys.translate(packet.remote_key, qp_.attributes().domain, packet.address,
                              packet.payload.size(), Access::remote_write);
  if (is_relaxed(packet.remote_key))
    return services.relaxed.delay(to, packet.payload, qp_.now() + services.options.relaxed_delay);
  services.relaxed.flush();
  if (services.options.whole_words) return place(to, packet.payload);
  place_in_pieces(to, packet.payload);
}

bool Responder::is_relaxed(std::uint32_t key) const {
  const Services& services = qp_.services();
  return services.options.relaxed_delay.count() > 0 &&
         (services.keys.find(key)->access & Access::relaxed_ordering) != 0;
}

bool Responder::execute_write(const Packet& packet, bool placed) {
  if (!placed) {
    if (const std::uint8_t code = check(packet); code != AckCode::ack) return refuse(code);
    if (packet.has_immediate && !take_receive()) return refuse(AckCode::rnr);
    place_write(packet);
  }
  if (packet.first) received_bytes_ = 0;
  received_bytes_ += placed ? packet.length : static_cast<std::uint32_t>(packet.payload.size());
  if (packet.has_immediate) return finish_receive(packet);
  return true;
}

bool Responder::execute_send(const Packet& packet) {
  if (packet.first) {
    if (!take_receive()) return refuse(AckCode::rnr);
    received_bytes_ = 0;
  }
  if (!receiving_) return refuse(AckCode::invalid_request);
  std::uint64_t room = 0;
  for (const DataSegment& segment : receiving_->data) room += segment.length;
  if (received_bytes_ + packet.payload.size() > room && !qp_.services().options.timing_only)
    return fail_receive(Syndrome::local_length, AckCode::invalid_request);
  if (!scatter(qp_.services(), qp_.attributes().domain, receiving_->data, received_bytes_,
               packet.payload))
    return fail_receive(Syndrome::local_protection, AckCode::operation_error);
  received_bytes_ += static_cast<std::uint32_t>(packet.payload.size());
  return packet.last ? finish_receive(packet) : true;
}

bool Responder::execute_read(const Packet& packet) {
  if (qp_.connection().remote_reads_and_atomics == 0) return refuse(AckCode::invalid_request);
  if (const std::uint8_t code = check(packet); code != AckCode::ack) return refuse(code);
  qp_.services().relaxed.flush();
  keep({.psn = packet.psn, .packets = packets_of_read(packet)});
  reply_to_read(packet);
  return true;
}

void Responder::reply_to_read(const Packet& packet) {
  replies_.push_back({.kind = PacketKind::read_response,
                      .psn = packet.psn,
                      .remote_key = packet.remote_key,
                      .address = packet.address,
                      .bytes = packet.length});
}

bool Responder::execute_atomic(const Packet& packet) {
  if (qp_.connection().remote_reads_and_atomics == 0) return refuse(AckCode::invalid_request);
  if (const std::uint8_t code = check(packet); code != AckCode::ack) return refuse(code);
  const AtomicOperands& operands = packet.atomic;
  Replay replay{.psn = packet.psn, .atomic = true, .size = operands.size};
  if (!qp_.services().options.timing_only) {
    std::byte* const at =
        qp_.services().keys.translate(packet.remote_key, qp_.attributes().domain, packet.address,
                                      operands.size, Access::remote_atomic);
    if (!is_relaxed(packet.remote_key)) qp_.services().relaxed.flush();
    const bool global = qp_.services().options.global_atomics;
    replay.old_value = operands.size == 4 ? exchange<std::uint32_t>(at, operands, global)
                                          : exchange<std::uint64_t>(at, operands, global);
  }
  keep(replay);
  replies_.push_back({.kind = PacketKind::atomic_response,
                      .psn = packet.psn,
                      .old_value = replay.old_value,
                      .size = replay.size});
  return true;
}

void Responder::keep(const Replay& replay) {
  if (replays_.size() >= qp_.connection().remote_reads_and_atomics) replays_.pop_front();
  replays_.push_back(replay);
}

bool Responder::take_receive() {
  ReceiveQueue* const queue = qp_.attributes().receives.get();
  receiving_ = queue == nullptr ? std::nullopt : queue->take();
  return receiving_.has_value();
}

bool Responder::finish_receive(const Packet& packet) {
  CqeOpcode opcode = CqeOpcode::response_send;
  if (packet.kind == PacketKind::write)
    opcode = CqeOpcode::response_write_immediate;
  else if (packet.invalidates)
    opcode = CqeOpcode::response_send_invalidate;
  else if (packet.has_immediate)
    opcode = CqeOpcode::response_send_immediate;
  const Completion completion{.opcode = opcode,
                              .immediate = packet.immediate,
                              .bytes = received_bytes_,
                              .request_index = receiving_->index,
                              .solicited = packet.solicited};
  receiving_.reset();
  qp_.complete_receive(completion);
  return qp_.state() != QpState::error;
}

bool Responder::fail_receive(Syndrome syndrome, std::uint8_t code) {
  const Completion completion{.opcode = CqeOpcode::response_error,
                              .syndrome = syndrome,
                              .request_index = receiving_->index};
  receiving_.reset();
  qp_.complete_receive(completion);
  return refuse(code);
}

void Responder::acknowledge() {
  const Reply reply{.psn = psn_add(expected_, kPsnMask)};
  // Acknowledgements of earlier packets are contained in it.
  if (!replies_.empty() && replies_.back().kind == PacketKind::acknowledge &&
      replies_.back().ack_code == AckCode::ack)
    replies_.back() = reply;
  else
    replies_.push_back(reply);
}

bool Responder::refuse(std::uint8_t code) {
  if (code == AckCode::rnr) code |= qp_.connection().min_rnr_timer & 0x1f;
  nak_sent_ = true;  // packets after it are dropped until it comes again
  replies_.push_back({.psn = expected_, .ack_code = code});
  if ((code & AckCode::kind_mask) == AckCode::rnr) return false;
  if (qp_.on_refused) qp_.on_refused(code);
  qp_.fail();
  return false;
}

void Responder::flush() {
  early_.clear();
  if (receiving_) {
    const Completion completion{.opcode = CqeOpcode::response_error,
                                .syndrome = Syndrome::flushed,
                                .request_index = receiving_->index};
    receiving_.reset();
    qp_.complete_receive(completion);
  }
  ReceiveQueue* const queue = qp_.attributes().receives.get();
  if (queue == nullptr || queue->attributes().shared) return;
  while (const auto request = queue->take())
    qp_.complete_receive({.opcode = CqeOpcode::response_error,
                          .syndrome = Syndrome::flushed,
                          .request_index = request->index});
}

bool Responder::send_one() {
  if (replies_.empty()) return false;
  Reply& reply = replies_.front();
  Packet packet;
  packet.kind = reply.kind;
  packet.psn = reply.psn;
  packet.ack_code = reply.ack_code;
  packet.sequence = messages_;
  packet.last = true;
  if (reply.kind == PacketKind::atomic_response) {
    packet.atomic.size = reply.size;
    packet.atomic.swap_or_add = reply.old_value;
  }
  if (reply.kind != PacketKind::read_response) {
    replies_.pop_front();
    qp_.transmit(std::move(packet), false);
    return true;
  }
  const std::uint64_t part = std::min<std::uint64_t>(reply.bytes, qp_.connection().mtu);
  packet.payload.resize(part);
  packet.first = reply.first;
  packet.any_path = qp_.connection().ordering == Ordering::unordered;
  const Services& services = qp_.services();
  if (part != 0 && !services.options.timing_only) {
    const std::byte* const from = services.keys.translate(reply.remote_key, qp_.attributes().domain,
                                                          reply.address, part, Access::remote_read);
    if (from == nullptr) {  // destroyed meanwhile
      replies_.clear();
      return refuse(AckCode::access_error);
    }
    std::memcpy(packet.payload.data(), from, part);
  }
  reply.psn = psn_add(reply.psn, 1);
  reply.address += part;
  reply.bytes -= part;
  reply.first = false;
  packet.last = reply.bytes == 0;
  if (packet.last) replies_.pop_front();
  qp_.transmit(std::move(packet), false);
  return true;
}

}  // namespace shoal::emulator
