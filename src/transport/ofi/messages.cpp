// SPDX-License-Identifier: Apache-2.0
// Messages of the engine: sending requests, applying those of others, answering them (wire.hpp).
#include <rdma/fi_errno.h>

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "base/log.hpp"
#include "transport/ofi/engine.hpp"
#include "transport/ofi/handshake.hpp"
#include "transport/ofi/wait.hpp"
#include "transport/words.hpp"

namespace shoal::transport::ofi {

void Engine::request(const char* operation, Pe pe, Message message, bool after_writes,
                     const void* payload, void* target, Batch* batch) {
  Peer& peer = peers_[static_cast<std::size_t>(pe)];
  wait(operation, pe, [&] {
    check_peer(peer, operation);
    if ((after_writes || peer.fenced) && !writes_done(peer)) return false;
    if (try_request(peer, message, payload, target, batch)) return true;
    check_peer(peer, operation);
    return false;
  });
}

/// False: poll and try again, or the peer has failed.
bool Engine::try_request(Peer& peer, Message message, const void* payload, void* target,
                         Batch* batch) {
  if (peer.sent - peer.acknowledged >= peer.window) return false;
  message.sequence = peer.sent + 1;
  if ((message.flags & flag::eager) != 0)
    message.flags ^=
        flag::eager | (not_before(peer.acknowledged, peer.asked) ? flag::acknowledge : 0);
  const std::size_t bytes = message.kind == Kind::data ? message.compare : 0;
  if (post_message(peer, peer.home, message, payload, bytes) != 0) return false;
  ++peer.sent;
  count_in_flight(peer.sent - peer.acknowledged);
  peer.written = false;  // its acknowledgement covers the writes before it
  if (message.kind == Kind::fetch) {
    peer.fetches[message.sequence % peer.window] = {true, message.width, target, batch};
    ++peer.fetching;
    if (batch != nullptr) ++batch->pending;
  }
  // A fetch is acknowledged by its answer.
  if ((message.flags & flag::acknowledge) != 0 || message.kind == Kind::fetch)
    peer.asked = peer.sent;
  return true;
}

/// 0, or -FI_EAGAIN; other errors fail the peer.
ssize_t Engine::post_message(Peer& peer, std::size_t rail, const Message& message,
                             const void* payload, std::size_t bytes) {
  Line& line = lines_[rail];
  std::byte buffer[kMessageBytes];
  Message complete = message;
  complete.world = world_;
  complete.source = my_pe_;
  complete.acknowledged = peer.applied();
  std::memcpy(buffer, &complete, sizeof complete);
  if (bytes != 0) std::memcpy(buffer + sizeof complete, payload, bytes);
  const std::size_t length = sizeof complete + bytes;
  const fi_addr_t to = peer.rails[rail].address;
  const bool probe = message.kind == Kind::probe;  // wants to know what becomes of it
  ssize_t code = -FI_EAGAIN;
  if (length <= line.rail->inject_limit() && !probe) {
    code = line.rail->inject(to, buffer, length);
  } else if (Request* const request = line.senders.take(); request != nullptr) {
    request->kind = Request::Kind::send;
    request->probe = probe;
    request->pe = peer.pe;
    std::memcpy(request->buffer, buffer, length);
    code = line.rail->send(to, request->buffer, length, line.outgoing_region.descriptor,
                           &request->context);
    if (code != 0) line.senders.give(request);
  }
  if (code == 0) {
    peer.told = complete.acknowledged;
    peer.due = false;
  } else if (code != -FI_EAGAIN) {
    fail_peer(peer.pe, fmt::format("{} on rail {} ({}) of provider {}", error_text(code), rail,
                                   line.rail->domain(), provider_));
  }
  return code;
}

void Engine::take_message(std::size_t rail, const std::byte* buffer, std::size_t bytes) {
  Message message;
  if (bytes < sizeof message)
    return log::warn("PE {}: transport ofi: {} bytes are no message", my_pe_, bytes);
  std::memcpy(&message, buffer, sizeof message);
  const auto source = static_cast<std::size_t>(message.source);
  if (message.world != world_ || source >= peers_.size() || !peers_[source].known)
    return log::warn("PE {}: transport ofi: a message on {} is not of this world", my_pe_,
                     lines_[rail].rail->domain());
  Peer& peer = peers_[source];
  if (message.kind == Kind::reply) take_reply(peer, message);
  if (not_before(message.acknowledged, peer.acknowledged) &&
      not_before(peer.sent, message.acknowledged))
    peer.acknowledged = message.acknowledged;
  switch (message.kind) {
    case Kind::acknowledge:
    case Kind::reply:
      return;
    case Kind::hello:
      return take_hello(peer, message);
    case Kind::welcome:
      (message.operand == 1 ? peer.welcomed : peer.refused) |= std::uint32_t{1}
                                                               << (message.offset % kMaxRails);
      return;
    case Kind::probe:
      peer.due = true;
      return answer_later(peer);
    default:
      break;
  }
  if (message.sequence != peer.received + 1)
    return fail_peer(peer.pe, fmt::format("message {} came where {} was expected", message.sequence,
                                          peer.received + 1));
  if (!apply(peer, message, buffer + sizeof message, bytes - sizeof message))
    return fail_peer(peer.pe, fmt::format("it sent an operation at offset {} that is not allowed",
                                          message.offset));
  ++peer.received;
  const std::uint32_t untold = peer.received - peer.told;
  if ((message.flags & flag::acknowledge) != 0 || untold >= (window_ + 1) / 2) peer.due = true;
  if (peer.due || !peer.replies.empty()) answer_later(peer);
}

/// False: nothing of it was done, for it is outside of this PE's memory or unknown.
bool Engine::apply(Peer& peer, const Message& message, const std::byte* payload,
                   std::size_t bytes) {
  const auto inside = [&](std::uint64_t offset, std::uint64_t length, std::uint64_t alignment) {
    return offset % alignment == 0 && offset <= segment_bytes_ && length <= segment_bytes_ - offset;
  };
  const auto fits = [&] {
    const bool word = message.width == 4 || message.width == 8;
    switch (message.kind) {
      case Kind::nothing:
        return true;
      case Kind::data:
        return message.compare <= bytes && inside(message.offset, message.compare, 1);
      default:
        return word && message.op <= AtomicOp::compare_swap &&
               inside(message.offset, message.width, message.width);
    }
  };
  const bool signal = (message.flags & (flag::signal_set | flag::signal_add)) != 0;
  if (!fits() || (signal && !inside(message.signal_offset, 8, 8))) return false;
  std::byte* const target = segment_->base() + message.offset;
  if (message.kind == Kind::store) {
    if (message.width == 8) {
      store_word<std::uint64_t>(target, &message.operand);
    } else {
      store_word<std::uint32_t>(target, &message.operand);
    }
  } else if (message.kind == Kind::data) {
    std::memcpy(target, payload, message.compare);
  } else if (message.kind != Kind::nothing) {
    const std::uint64_t before =
        update_word(target, message.width, message.op, message.operand, message.compare);
    if (message.kind == Kind::fetch) {
      Message reply;
      reply.kind = Kind::reply;
      reply.sequence = message.sequence;
      reply.operand = before;
      peer.replies.push_back(reply);
    }
  }
  if (signal)
    update_signal(segment_->base() + message.signal_offset,
                  (message.flags & flag::signal_set) != 0 ? SignalOp::set : SignalOp::add,
                  message.signal_value);
  return true;
}

void Engine::take_reply(Peer& peer, const Message& message) {
  Fetch& fetch = peer.fetches[message.sequence % peer.window];
  if (!fetch.waiting) return;
  if (fetch.target != nullptr) {
    if (fetch.width == 8) {
      std::memcpy(fetch.target, &message.operand, 8);
    } else {
      const auto value = static_cast<std::uint32_t>(message.operand);
      std::memcpy(fetch.target, &value, 4);
    }
  }
  if (fetch.batch != nullptr) --fetch.batch->pending;
  fetch = Fetch{};
  --peer.fetching;
}

void Engine::take_hello(Peer& peer, const Message& message) {
  if (message.offset >= peer.rails.size()) return;
  Message welcome;
  welcome.kind = Kind::welcome;
  welcome.offset = message.offset;
  welcome.operand = Handshake::arrived(scratch_.data(), peer.pe, my_pe_, message.offset) ? 1 : 0;
  peer.welcomes.push_back(welcome);
  answer_later(peer);
}

void Engine::answer_later(Peer& peer) {
  if (peer.listed) return;
  peer.listed = true;
  answering_.push_back(peer.pe);
}

void Engine::send_answers() {
  for (std::size_t i = 0; i < answering_.size();) {
    Peer& peer = peers_[static_cast<std::size_t>(answering_[i])];
    if (!send_answers(peer)) {
      ++i;  // the provider takes nothing now
      continue;
    }
    peer.listed = false;
    answering_[i] = answering_.back();
    answering_.pop_back();
  }
}

/// False: there are still some.
bool Engine::send_answers(Peer& peer) {
  while (!peer.welcomes.empty()) {
    if (post_message(peer, peer.welcomes.front().offset, peer.welcomes.front(), nullptr, 0) ==
        -FI_EAGAIN)
      return false;
    if (!peer.failure.empty()) return true;
    peer.welcomes.pop_front();
  }
  while (!peer.replies.empty()) {
    const Message reply = peer.replies.front();
    peer.replies.pop_front();  // before it is sent, for it acknowledges its request
    if (post_message(peer, peer.home, reply, nullptr, 0) == -FI_EAGAIN) {
      peer.replies.push_front(reply);
      return false;
    }
    if (!peer.failure.empty()) return true;
  }
  if (!peer.due) return true;
  Message message;
  message.kind = Kind::acknowledge;
  return post_message(peer, peer.home, message, nullptr, 0) != -FI_EAGAIN;
}

void Engine::probe(Peer& peer) {
  if (peer.probing) return;
  Message message;
  message.kind = Kind::probe;
  peer.probing = post_message(peer, peer.home, message, nullptr, 0) == 0;
}

}  // namespace shoal::transport::ofi
