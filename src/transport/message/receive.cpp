// SPDX-License-Identifier: Apache-2.0
// Messages that arrive: requests are applied, replies are written to where their calls wait.
#include <algorithm>

#include "base/log.hpp"
#include "transport/message/apply.hpp"
#include "transport/message/engine.hpp"
#include "transport/message/handshake.hpp"

namespace shoal::transport::message {

void Engine::stamp(const Peer& peer, Message& message) const noexcept {
  message.world = world_;
  message.source = my_pe_;
  message.acknowledged = peer.applied();
}

void Engine::sent(Peer& peer, const Message& message) const noexcept {
  peer.reported = message.acknowledged;
  peer.acknowledgement_due = false;
  if (!network_->traits().hides_rma) return;
  peer.unannounced = 0;
  peer.announced = Clock::now();
}

void Engine::receive(const std::byte* data, std::size_t bytes) {
  Message message;
  const bool whole = bytes >= sizeof message;
  if (whole) std::memcpy(&message, data, sizeof message);
  const auto source = static_cast<std::size_t>(message.source);
  if (!whole || message.world != world_ || source >= peers_.size() || !peers_[source].known)
    return log::warn(
        "SHOAL-N318: PE {}: transport {}: a message of {} bytes is not of this world; dropped",
        my_pe_, network_->traits().name, bytes);
  Peer& peer = peers_[source];
  if (!peer.failure.empty()) return;
  if (!not_before(peer.sent, message.acknowledged))
    return fail_peer(peer, "SHOAL-N319: it acknowledges a message that was never sent");
  const std::byte* const payload = data + sizeof message;
  const std::size_t payload_bytes = bytes - sizeof message;
  if (message.kind == Kind::reply) receive_reply(peer, message, payload, payload_bytes);
  if (not_before(message.acknowledged, peer.acknowledged)) peer.acknowledged = message.acknowledged;
  // Before the numbers wrap, however long no request is counted.
  if (not_before(peer.acknowledged, peer.counted)) peer.counted = peer.acknowledged;
  switch (message.kind) {
    case Kind::acknowledge:
    case Kind::reply:
      return;
    case Kind::hello:
      return receive_hello(peer, message);
    case Kind::welcome: {
      const std::uint32_t bit = std::uint32_t{1} << (message.offset % scratch_rails_);
      (message.word.operand == 1 ? peer.welcomed : peer.refused) |= bit;
      return;
    }
    case Kind::probe:
      peer.acknowledgement_due = true;
      return reply_later(peer);
    case Kind::goodbye:
      return fail_peer(peer, "left", true);
    default:
      return receive_request(peer, message, data, bytes);
  }
}

void Engine::receive_request(Peer& peer, const Message& message, const std::byte* data,
                             std::size_t bytes) {
  const std::uint32_t ahead = message.sequence - peer.received - 1;
  if (ahead != 0) {
    const Traits& traits = network_->traits();
    const bool good = traits.reorders && ahead < traits.window &&
                      peer.early.try_emplace(message.sequence, data, data + bytes).second;
    if (!good)
      fail_peer(peer, fmt::format("SHOAL-N319: message {} arrived where {} was expected",
                                  message.sequence, peer.received + 1));
    return;
  }
  apply_request(peer, message, data + sizeof message, bytes - sizeof message);
  while (!peer.early.empty()) {
    const auto next = peer.early.extract(peer.received + 1);
    if (next.empty()) break;
    const std::vector<std::byte>& early = next.mapped();
    Message request;
    std::memcpy(&request, early.data(), sizeof request);
    apply_request(peer, request, early.data() + sizeof request, early.size() - sizeof request);
  }
  if (peer.acknowledgement_due) reply_later(peer);
}

void Engine::apply_request(Peer& peer, const Message& message, const std::byte* payload,
                           std::size_t bytes) {
  if (!is_valid(message, bytes, segment_->size(), network_->traits().payload_bytes))
    return fail_peer(peer, fmt::format("SHOAL-N319: its message {} at offset {} is not valid",
                                       message.sequence, message.offset));
  const std::uint64_t before = apply(message, payload, segment_->base());
  ++peer.received;
  if ((message.flags & flag::acknowledge) != 0) peer.acknowledgement_due = true;
  if (!has_reply(message.kind)) return;
  Message reply = message;
  reply.kind = Kind::reply;
  reply.flags = 0;
  if (message.kind == Kind::fetch) reply.word.operand = before;
  send_reply(peer, reply);
}

void Engine::receive_reply(Peer& peer, const Message& message, const std::byte* payload,
                           std::size_t bytes) {
  Expected& expected = peer.expected[message.sequence % peer.window];
  if (!expected.waiting || expected.sequence != message.sequence) return;
  if (expected.width == 0 && bytes != expected.element * expected.count)
    return fail_peer(peer, fmt::format("SHOAL-N319: its reply has {} bytes, expected {}", bytes,
                                       expected.element * expected.count));
  if (expected.target == nullptr) {
    // The call has given up.
  } else if (expected.width == 8) {
    std::memcpy(expected.target, &message.word.operand, 8);
  } else if (expected.width == 4) {
    const auto value = static_cast<std::uint32_t>(message.word.operand);
    std::memcpy(expected.target, &value, sizeof value);
  } else {
    for (std::size_t i = 0; i < expected.count; ++i)
      std::memcpy(expected.target + i * expected.stride, payload + i * expected.element,
                  expected.element);
  }
  if (expected.batch != nullptr) --expected.batch->pending;
  expected = {};
  --peer.replies_awaited;
}

void Engine::receive_hello(Peer& peer, const Message& message) {
  if (message.offset >= peer.rails) return;
  Message welcome;
  welcome.kind = Kind::welcome;
  welcome.offset = message.offset;
  const std::size_t at = scratch_offset(peer.pe, message.offset, scratch_rails_, Slot::incoming);
  welcome.word.operand =
      is_pattern(scratch_.data() + at, world_, peer.pe, my_pe_, message.offset) ? 1 : 0;
  send_reply(peer, welcome);
}

/// Sends a reply or welcome, now or as soon as the network takes it.
void Engine::send_reply(Peer& peer, const Message& message) {
  if (peer.unsent.empty() && try_reply(peer, message)) return;
  if (!peer.failure.empty()) return;
  peer.unsent.push_back(message);
  reply_later(peer);
}

bool Engine::try_reply(Peer& peer, const Message& message) {
  Payload payload;
  if (message.kind == Kind::reply && message.width == 0)  // to Kind::get
    payload = {segment_->base() + message.offset, message.elements.bytes, message.elements.count,
               message.elements.stride};
  return network_->send(peer, message, payload, After::nothing);
}

void Engine::reply_later(Peer& peer) {
  if (peer.listed) return;
  peer.listed = true;
  replying_.push_back(peer.pe);
}

/// False: the network took only a part.
bool Engine::send_replies(Peer& peer) {
  while (!peer.unsent.empty()) {
    const Message message = peer.unsent.front();
    peer.unsent.pop_front();  // before it is sent: a reply acknowledges its request
    const bool taken = try_reply(peer, message);
    if (!peer.failure.empty()) return true;
    if (taken) continue;
    peer.unsent.push_front(message);
    return false;
  }
  if (!peer.acknowledgement_due) return true;
  Message acknowledgement;
  acknowledgement.kind = Kind::acknowledge;
  return network_->send(peer, acknowledgement, {}, After::nothing) || !peer.failure.empty();
}

}  // namespace shoal::transport::message
