// SPDX-License-Identifier: Apache-2.0
#include "engine/requester.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/big_endian.hpp"
#include "engine/queue_pair.hpp"

namespace shoal::emulator {
namespace {

PacketKind kind_of(Opcode opcode) {
  if (opcode == Opcode::read) return PacketKind::read_request;
  if (is_atomic(opcode)) return PacketKind::atomic_request;
  return is_write(opcode) ? PacketKind::write : PacketKind::send;
}

Syndrome syndrome_of(std::uint8_t ack_code) {
  switch (ack_code) {
    case AckCode::invalid_request:
      return Syndrome::remote_invalid_request;
    case AckCode::access_error:
      return Syndrome::remote_access;
    default:
      return Syndrome::remote_operation;
  }
}

}  // namespace

void Requester::start() {
  const Connection& connection = qp_.connection();
  next_psn_ = highest_ = acked_ = proves_loss_from_ = doubted_until_ = connection.send_psn;
  reported_missing_.reset();
  retries_ = connection.retry_count;
  rnr_retries_ = connection.rnr_retry;
  resend_after_ = qp_.services().options.first_resend;
}

void Requester::reset() {
  messages_.clear();
  resend_.clear();
  cursor_ = 0;
  fetched_ = posted_ = 0;
  responses_due_ = since_request_ = 0;
  paused_until_ = kNever;
  stop_timer();
}

std::uint32_t Requester::position() const {
  return cursor_ < messages_.size() ? psn_add(messages_[cursor_].first_psn, messages_[cursor_].sent)
                                    : next_psn_;
}

bool Requester::may_send(const Message& message) const {
  const Connection& connection = qp_.connection();
  if (message.error != Syndrome::none) return false;
  if (psn_distance(position(), acked_) >= static_cast<std::int32_t>(qp_.services().options.window))
    return false;
  if (message.sent != 0) return true;
  if (message.request.fenced && responses_due_ != 0) return false;
  if (message.expects_response() && !has_replay_room()) return false;
  const bool held =
      connection.ordering == Ordering::adaptive && message.request.opcode != Opcode::write;
  return !held || psn_distance(acked_, message.first_psn) >= 0;
}

bool Requester::has_replay_room() const {
  // The responder keeps as many for replay, complete ones included. Any from the oldest incomplete
  // one on may be asked for again.
  std::uint32_t kept = 0;
  for (std::size_t i = 0; i < cursor_; ++i) kept += messages_[i].expects_response() ? 1 : 0;
  return kept < qp_.connection().reads_and_atomics;
}

bool Requester::wants_to_send() const {
  if (paused_until_ != kNever) return false;
  if (!resend_.empty()) return true;
  if (cursor_ < messages_.size()) return may_send(messages_[cursor_]);
  return fetched_ != posted_;
}

Syndrome Requester::check(const WorkRequest& request) const {
  const Services& services = qp_.services();
  const bool fetches = request.opcode == Opcode::read || is_atomic(request.opcode);
  if (fetches && qp_.connection().reads_and_atomics == 0) return Syndrome::local_qp_operation;
  if (request.length() > services.options.limits.message_bytes) return Syndrome::local_length;
  const std::uint32_t access = fetches ? Access::local_write : 0;
  return covered(services, qp_.attributes().domain, request.data, access)
             ? Syndrome::none
             : Syndrome::local_protection;
}

Syndrome Requester::take_request(WorkRequest& request) {
  Syndrome syndrome = decode(qp_.attributes().ring, qp_.number(), fetched_, request);
  const auto posted = static_cast<std::uint16_t>(posted_ - fetched_);
  if (request.blocks > posted) {  // the doorbell record ends within it
    request.blocks = posted;
    syndrome = Syndrome::local_qp_operation;
  }
  fetched_ = static_cast<std::uint16_t>(fetched_ + request.blocks);
  return syndrome;
}

void Requester::fetch() {
  Message message;
  message.error = take_request(message.request);
  ++qp_.count().requests;
  if (message.error == Syndrome::none) message.error = check(message.request);
  message.first_psn = next_psn_;
  message.bytes = message.request.length();
  if (message.error == Syndrome::none && message.request.opcode != Opcode::nop) {
    const std::uint64_t mtu = qp_.connection().mtu;
    message.packets = is_atomic(message.request.opcode)
                          ? 1
                          : static_cast<std::uint32_t>(
                                std::max<std::uint64_t>(1, (message.bytes + mtu - 1) / mtu));
    if (message.expects_response()) message.has_arrived.resize(message.packets);
  }
  next_psn_ = psn_add(next_psn_, message.packets);
  messages_.push_back(std::move(message));
}

bool Requester::send_one() {
  if (!resend_.empty()) return resend_one();
  if (cursor_ == messages_.size()) {
    if (fetched_ == posted_) return false;
    fetch();
    skip_done();
    complete_front();  // a request that fails or needs no packet
    if (cursor_ >= messages_.size()) return false;
  }
  Message& message = messages_[cursor_];
  if (!may_send(message)) return false;
  if (!send_packet(message, message.sent)) {
    message.error = Syndrome::local_protection;
    complete_front();
    return false;
  }
  message.sent = message.expects_response() ? message.packets : message.sent + 1;
  if (message.sent == message.packets) {
    if (message.expects_response()) ++responses_due_;
    ++cursor_;
    skip_done();
  }
  if (timeout_ == kNever) restart_timer();
  return true;
}

void Requester::skip_done() {
  for (; cursor_ < messages_.size(); ++cursor_) {
    Message& message = messages_[cursor_];
    if (message.error != Syndrome::none) return;
    if (message.expects_response()) {
      if (!message.responses_complete()) return;
      continue;
    }
    const std::int32_t done = psn_distance(acked_, message.first_psn);
    if (done > static_cast<std::int32_t>(message.sent))
      message.sent = std::min(static_cast<std::uint32_t>(done), message.packets);
    if (message.sent < message.packets) return;
  }
}

bool Requester::resend_one() {
  const std::uint32_t psn = resend_.front();
  resend_.pop_front();
  const Message* const message = find(psn);
  if (message == nullptr) return false;
  if (message->expects_response() ? message->responses_complete() : psn_distance(psn, acked_) < 0)
    return false;
  const auto number = static_cast<std::uint32_t>(psn_distance(psn, message->first_psn));
  // Not sent yet in this pass: its turn comes.
  if (number >= message->sent) return false;
  return send_packet(*message, number);
}

bool Requester::send_packet(const Message& message, std::uint32_t number) {
  const WorkRequest& request = message.request;
  const Connection& connection = qp_.connection();
  const NicOptions& options = qp_.services().options;
  Packet packet;
  packet.kind = kind_of(request.opcode);
  packet.address = request.remote_address;
  packet.remote_key = request.remote_key;
  const std::uint64_t offset = std::uint64_t{number} * connection.mtu;
  if (packet.kind == PacketKind::read_request) {
    const auto missing = static_cast<std::uint32_t>(
        std::find(message.has_arrived.begin(), message.has_arrived.end(), false) -
        message.has_arrived.begin());
    const std::uint64_t done = std::uint64_t{missing} * connection.mtu;
    number = missing;
    packet.first = packet.last = true;
    packet.address += done;
    packet.length = static_cast<std::uint32_t>(message.bytes - done);
  } else if (packet.kind == PacketKind::atomic_request) {
    packet.first = packet.last = true;
    packet.atomic = request.atomic;
  } else {
    packet.first = number == 0;
    packet.last = number + 1 == message.packets;
    packet.address += offset;
    packet.payload.resize(std::min<std::uint64_t>(message.bytes - offset, connection.mtu));
    if (!request.inline_data.empty())
      std::copy_n(request.inline_data.begin() + static_cast<std::ptrdiff_t>(offset),
                  packet.payload.size(), packet.payload.begin());
    else if (!gather(qp_.services(), qp_.attributes().domain, request.data, offset, packet.payload))
      return false;
  }
  packet.psn = psn_add(message.first_psn, number);
  packet.solicited = request.solicited && packet.last;
  packet.has_immediate = packet.last && has_immediate(request.opcode);
  packet.invalidates = request.opcode == Opcode::send_invalidate;
  packet.immediate = request.immediate;
  packet.any_path = connection.ordering == Ordering::unordered ||
                    (connection.ordering == Ordering::adaptive && request.opcode == Opcode::write);
  const bool again = psn_distance(packet.psn, highest_) < 0;
  const std::uint32_t end =
      psn_add(packet.psn, message.expects_response() ? message.packets - number : 1);
  const bool window_ends = psn_distance(end, acked_) >= static_cast<std::int32_t>(options.window);
  packet.ack_requested =
      packet.last || again || window_ends || ++since_request_ >= options.ack_every;
  if (packet.ack_requested) since_request_ = 0;
  if (psn_distance(end, highest_) > 0) highest_ = end;
  qp_.transmit(std::move(packet), again);
  return true;
}

Requester::Message* Requester::find(std::uint32_t psn) {
  for (Message& message : messages_) {
    const std::int32_t number = psn_distance(psn, message.first_psn);
    if (number >= 0 && number < static_cast<std::int32_t>(message.packets)) return &message;
  }
  return nullptr;
}

bool Requester::is_complete(const Message& message) const {
  if (message.expects_response()) return message.responses_complete();
  return psn_distance(acked_, psn_add(message.first_psn, message.packets)) >= 0;
}

void Requester::complete_front() {
  while (!messages_.empty()) {
    const Message& front = messages_.front();
    if (front.error != Syndrome::none) {
      // Reported when everything before it is done.
      fail_front(front.error);
      return;
    }
    if (!is_complete(front)) return;
    const WorkRequest request = std::move(messages_.front().request);
    const auto bytes = static_cast<std::uint32_t>(front.bytes);
    messages_.pop_front();
    if (cursor_ > 0) --cursor_;
    qp_.complete_send(request, Syndrome::none, bytes);
    if (qp_.state() == QpState::error) return;
  }
  stop_timer();  // nothing is in flight
}

void Requester::advance(std::uint32_t end) {
  if (psn_distance(end, acked_) <= 0) return;
  const bool one = psn_distance(end, acked_) == 1;
  acked_ = end;
  skip_done();  // packets that were to be sent again, and whose acknowledgement was only late
  progressed();
  if (psn_distance(doubted_until_, acked_) <= 0) return;
  if (qp_.connection().ordering != Ordering::strict) return resend_oldest();
  // The packet that was sent again, and none after it: the responder has dropped those.
  doubted_until_ = acked_;
  if (one) go_back(acked_);
}

void Requester::progressed() {
  retries_ = qp_.connection().retry_count;
  rnr_retries_ = qp_.connection().rnr_retry;
  resend_after_ = qp_.services().options.first_resend;
  restart_timer();
}

void Requester::resend_oldest() {
  if (messages_.empty()) return;
  const Message& front = messages_.front();
  if (front.expects_response()) resend_.push_back(front.first_psn);
  if (!front.expects_response() || acked_ != front.first_psn) resend_.push_back(acked_);
}

void Requester::acknowledged(const Packet& packet) {
  // An acknowledgement counts only if it is neither older than a known one nor beyond the sent
  // packets.
  if (psn_distance(packet.psn, psn_add(acked_, kPsnMask)) < 0 ||
      psn_distance(packet.psn, highest_) >= 0)
    return;
  if (packet.ack_code != AckCode::ack) return refused(packet);
  advance(psn_add(packet.psn, 1));
  complete_front();
  check_lost_response(packet.psn);
}

void Requester::check_lost_response(std::uint32_t psn) {
  if (messages_.empty() || qp_.connection().ordering != Ordering::strict) return;
  // On one path, responses come in order. Those to packets sent before the last such loss prove
  // nothing new.
  const Message& front = messages_.front();
  if (!front.expects_response() || cursor_ == 0 || psn_distance(psn, proves_loss_from_) < 0 ||
      psn_distance(psn, psn_add(front.first_psn, front.packets)) < 0)
    return;
  proves_loss_from_ = highest_;
  go_back_to(0);
}

void Requester::refused(const Packet& packet) {
  const std::uint32_t psn = packet.psn;
  if (psn_distance(psn, acked_) < 0) return;
  const bool progress = psn_distance(psn, acked_) > 0;
  advance(psn);
  complete_front();
  if (qp_.state() != QpState::ready_to_send) return;
  if ((packet.ack_code & AckCode::kind_mask) == AckCode::rnr) {
    if (!progress && paused_until_ != kNever) return;  // a copy: nothing was sent since
    ++qp_.count().receiver_not_ready;
    constexpr std::uint8_t kWithoutEnd = 7;
    if (qp_.connection().rnr_retry != kWithoutEnd) {
      if (rnr_retries_ == 0) return fail_at(psn, Syndrome::rnr_retry_exceeded);
      --rnr_retries_;
    }
    paused_until_ = qp_.now() + rnr_pause(packet.ack_code & 0x1f);
    stop_timer();
    return go_back(psn);
  }
  ++qp_.count().naks;
  if (packet.ack_code != AckCode::sequence_error) return fail_at(psn, syndrome_of(packet.ack_code));
  // A responder reports a missing packet once: the rest are copies, which take no retries.
  if (!progress && reported_missing_ == psn) return;
  if (!progress && !use_retry()) return;
  reported_missing_ = psn;
  if (qp_.connection().ordering == Ordering::strict)
    go_back(psn);
  else
    resend_.push_back(psn);
}

void Requester::responded(Packet&& packet) {
  Message* const message = find(packet.psn);
  if (message == nullptr || !message->expects_response()) return;
  const auto number = static_cast<std::uint32_t>(psn_distance(packet.psn, message->first_psn));
  if (message->has_arrived[number]) {
    ++qp_.count().duplicates;
    return;
  }
  const std::uint64_t offset = std::uint64_t{number} * qp_.connection().mtu;
  if (packet.kind == PacketKind::atomic_response) {
    const std::uint64_t value = packet.atomic.swap_or_add;
    packet.payload.resize(message->request.atomic.size);
    // Results of 8 bytes are in host order, those of 4 in network order, as on ConnectX-7.
    if (message->request.atomic.size == 8)
      std::memcpy(packet.payload.data(), &value, sizeof value);
    else
      store_be(packet.payload.data(), static_cast<std::uint32_t>(value));
  } else if (packet.payload.size() !=
             std::min<std::uint64_t>(message->bytes - offset, qp_.connection().mtu)) {
    return fail_at(packet.psn, Syndrome::bad_response);
  }
  if (!scatter(qp_.services(), qp_.attributes().domain, message->request.data, offset,
               packet.payload))
    return fail_at(packet.psn, Syndrome::local_protection);
  const bool in_order = number == message->arrived;
  message->has_arrived[number] = true;
  ++message->arrived;
  if (message->responses_complete()) {
    if (message->sent == message->packets && responses_due_ > 0) --responses_due_;
    progressed();
    advance(psn_add(message->first_psn, message->packets));
    complete_front();
    check_lost_response(packet.psn);
  } else {
    progressed();
    if (!in_order && qp_.connection().ordering == Ordering::strict && message->sent != 0)
      go_back(message->first_psn);
  }
}

void Requester::go_back(std::uint32_t psn) {
  for (std::size_t i = 0; i < messages_.size(); ++i) {
    const Message& message = messages_[i];
    const std::int32_t number = psn_distance(psn, message.first_psn);
    if (number >= static_cast<std::int32_t>(message.packets)) continue;
    return go_back_to(i);
  }
}

void Requester::go_back_to(std::size_t index) {
  resend_.clear();
  cursor_ = std::min(cursor_, index);
  for (std::size_t i = index; i < messages_.size(); ++i) messages_[i].sent = 0;
  responses_due_ = 0;
  for (std::size_t i = 0; i < cursor_; ++i)
    if (messages_[i].expects_response() && !messages_[i].responses_complete()) ++responses_due_;
  skip_done();
}

bool Requester::use_retry() {
  if (retries_ == 0) {
    fail_front(Syndrome::retry_exceeded);
    return false;
  }
  --retries_;
  return true;
}

void Requester::fail_at(std::uint32_t psn, Syndrome syndrome) {
  while (!messages_.empty()) {
    const Message& front = messages_.front();
    if (psn_distance(psn, psn_add(front.first_psn, front.packets)) < 0) break;
    // Its response is still on its way; the connection ends before it can arrive.
    const WorkRequest request = std::move(messages_.front().request);
    messages_.pop_front();
    qp_.complete_send(request, Syndrome::flushed, 0);
  }
  fail_front(syndrome);
}

void Requester::fail_front(Syndrome syndrome) {
  if (!messages_.empty()) {
    const WorkRequest request = std::move(messages_.front().request);
    messages_.pop_front();
    qp_.complete_send(request, syndrome, 0);
  }
  qp_.fail();
}

void Requester::restart_timer() {
  const std::uint8_t code = qp_.connection().ack_timeout;
  const bool waiting = psn_distance(highest_, acked_) > 0 || cursor_ > 0;
  timeout_ = code == 0 || !waiting
                 ? kNever
                 : qp_.now() + Time(static_cast<std::int64_t>(4096) << std::min<int>(code, 31));
  set_resend();
}

void Requester::set_resend() {
  const Time at = qp_.now() + resend_after_;
  resend_at_ = resend_after_ > Time(0) && timeout_ != kNever && at < timeout_ ? at : kNever;
}

void Requester::stop_timer() {
  timeout_ = resend_at_ = kNever;
  resend_after_ = qp_.services().options.first_resend;
}

Time Requester::next_timer() const {
  return std::min({timeout_, resend_at_, paused_until_});
}

void Requester::run_timers() {
  const Time now = qp_.now();
  if (paused_until_ <= now) {
    paused_until_ = kNever;
    restart_timer();
  }
  if (resend_at_ <= now && timeout_ > now) {
    doubted_until_ = highest_;
    resend_oldest();
    resend_after_ *= 2;
    set_resend();
  }
  if (timeout_ > now) return;
  ++qp_.count().timeouts;
  qp_.trace(TraceEvent::Kind::timeout, acked_);
  timeout_ = resend_at_ = kNever;
  if (messages_.empty() || !use_retry()) return;
  go_back_to(0);
  restart_timer();
}

void Requester::flush() {
  paused_until_ = kNever;
  stop_timer();
  resend_.clear();
  cursor_ = 0;
  while (!messages_.empty()) {
    const WorkRequest request = std::move(messages_.front().request);
    messages_.pop_front();
    qp_.complete_send(request, Syndrome::flushed, 0);
  }
  while (fetched_ != posted_) {
    WorkRequest request;
    (void)take_request(request);
    qp_.complete_send(request, Syndrome::flushed, 0);
  }
}

}  // namespace shoal::emulator
