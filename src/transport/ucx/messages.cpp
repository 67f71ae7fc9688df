// SPDX-License-Identifier: Apache-2.0
// Messages between PEs: a window of numbered ones to each peer, applied in order, acknowledged
// lazily.
#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "transport/ucx/apply.hpp"
#include "transport/ucx/engine.hpp"

namespace shoal::transport::ucx {
namespace {

constexpr unsigned kMessageId = 1;

}  // namespace

Slot& Engine::take_slot(Peer& peer, Kind kind) {
  if (free_slots_.empty()) {
    slots_.push_back(std::make_unique<Slot>());
    free_slots_.push_back(slots_.back().get());
  }
  Slot& slot = *free_slots_.back();
  free_slots_.pop_back();
  slot.peer = &peer;
  slot.message.header = {};
  slot.message.header.world = world_;
  slot.message.header.pe = static_cast<std::uint32_t>(context_.my_pe);
  slot.message.header.kind = kind;
  return slot;
}

void Engine::give_slot(Slot& slot) {
  free_slots_.push_back(&slot);
}

Message& Engine::begin_message(Lock& lock, Peer& peer, Kind kind, const Operation& operation) {
  wait(lock, peer, operation, [&] { return peer.unacknowledged() + peer.in_flight < depth_; });
  if (peer.ended) throw_ended(peer, operation);
  return take_slot(peer, kind).message;
}

/// Gives the message its place in the order. Asks for an acknowledgement often enough for a full
/// window to empty.
void Engine::number(Slot& slot) {
  Peer& peer = *slot.peer;
  Header& header = slot.message.header;
  header.sequence = ++peer.sent;
  if (header.kind != Kind::nothing && peer.sent - peer.asked < std::max<std::size_t>(1, depth_ / 2))
    return;
  header.acknowledge = true;
  peer.asked = peer.sent;
}

void Engine::post(Message& message, std::uint64_t after) {
  Slot& slot = reinterpret_cast<Slot&>(message);
  Peer& peer = *slot.peer;
  number(slot);
  peer.held.push_back({&slot, std::max(after, peer.fenced_transfers)});
  send_held(peer);
}

void Engine::send_held(Peer& peer) {
  while (!peer.ended && !peer.held.empty()) {
    const auto [slot, after] = peer.held.front();
    if (after > peer.flushed) {
      if (peer.flushing) return;
      flush(peer);
      if (peer.flushing) return;  // its callback calls again
      continue;
    }
    peer.held.pop_front();
    transmit(*slot);
  }
}

void Engine::transmit(Slot& slot) {
  Peer& peer = *slot.peer;
  Message& message = slot.message;
  message.header.applied = peer.applied;
  peer.acknowledge = false;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.cb.send = &Callbacks::on_sent;
  param.user_data = &slot;
  void* const status =
      ucp_am_send_nbx(peer.endpoint, kMessageId, nullptr, 0, &message, message.bytes(), &param);
  if (UCS_PTR_IS_PTR(status)) return;
  if (message.header.kind == Kind::acknowledgement) peer.acknowledging = false;
  give_slot(slot);
  if (UCS_PTR_IS_ERR(status))
    end_peer(peer, fmt::format("sending failed: {}", text_of(UCS_PTR_STATUS(status))));
}

void Callbacks::on_sent(void* request, ucs_status_t status, void* user_data) {
  ucp_request_free(request);
  Slot& slot = *static_cast<Slot*>(user_data);
  Peer& peer = *slot.peer;
  Engine& engine = *peer.engine;
  const bool acknowledgement = slot.message.header.kind == Kind::acknowledgement;
  engine.give_slot(slot);
  if (status != UCS_OK)
    return engine.end_peer(peer, fmt::format("sending failed: {}", text_of(status)));
  if (!acknowledgement) return;
  peer.acknowledging = false;
  engine.send_acknowledgement(peer);
}

void Engine::send_acknowledgement(Peer& peer) {
  if (!peer.acknowledge || peer.acknowledging || peer.ended || peer.endpoint == nullptr) return;
  peer.acknowledging = true;
  transmit(take_slot(peer, Kind::acknowledgement));
}

void Engine::ask_for_acknowledgement(Peer& peer) {
  if (peer.ended || peer.acknowledged == peer.sent || peer.asked == peer.sent) return;
  post(take_slot(peer, Kind::nothing)
           .message);  // beyond the window, but once for all that came before
}

std::uint64_t Engine::post_request(Message& message, Request request, std::uint64_t after) {
  Peer& peer = *reinterpret_cast<Slot&>(message).peer;
  const std::uint64_t number = ++peer.requests_made;
  message.header.request = number;
  peer.requests.emplace(number, request);
  post(message, after);
  return number;
}

std::uint64_t Engine::await(Lock& lock, Peer& peer, std::uint64_t number,
                            const Operation& operation) {
  struct Forget {  // an answer that comes after a failure finds no memory to write to
    std::map<std::uint64_t, Request>& requests;
    std::map<std::uint64_t, Request>::iterator at;
    ~Forget() { requests.erase(at); }
  } const forget{peer.requests, peer.requests.find(number)};
  const Request& request = forget.at->second;
  wait(lock, peer, operation, [&] { return request.done; });
  return request.value;
}

ucs_status_t Callbacks::on_message(void* engine, const void*, std::size_t, void* data,
                                   std::size_t bytes, const ucp_am_recv_param_t* param) {
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0)  // nothing of ours is sent so
    static_cast<Engine*>(engine)->receive(static_cast<const std::byte*>(data), bytes);
  return UCS_OK;
}

void Engine::receive(const std::byte* data, std::size_t bytes) {
  Header header;
  if (bytes < sizeof header) return;
  std::memcpy(&header, data, sizeof header);
  if (header.world != world_ || header.pe >= peers_.size() ||
      bytes != sizeof header + header.payload)
    return;
  Peer& peer = peers_[header.pe];
  if (!peer.wanted || peer.ended) return;
  if (header.applied > peer.sent) return end_peer(peer, "it acknowledges what was never sent");
  peer.acknowledged = std::max(peer.acknowledged, header.applied);
  if (numbered(header.kind)) {
    receive_numbered(peer, header, data, bytes);
    send_acknowledgement(peer);
  } else if (header.kind == Kind::answer) {
    take_answer(peer, header, data + sizeof header);
  } else if (header.kind == Kind::goodbye) {
    end_peer(peer, "left");
  }
}

void Engine::receive_numbered(Peer& peer, const Header& header, const std::byte* data,
                              std::size_t bytes) {
  if (header.sequence != peer.applied + 1) {
    const bool good =
        header.sequence > peer.applied && peer.early.size() <= 2 * peer.depth + 2 &&
        peer.early.emplace(header.sequence, std::vector<std::byte>(data, data + bytes)).second;
    if (!good)
      end_peer(peer, fmt::format("its message {} came after {}", header.sequence, peer.applied));
    return;
  }
  apply(peer, header, data + sizeof header);
  while (!peer.ended && !peer.early.empty() && peer.early.begin()->first == peer.applied + 1) {
    const std::vector<std::byte> next = std::move(peer.early.begin()->second);
    peer.early.erase(peer.early.begin());
    Header early;
    std::memcpy(&early, next.data(), sizeof early);
    apply(peer, early, next.data() + sizeof early);
  }
}

void Engine::apply(Peer& peer, const Header& header, const std::byte* payload) {
  std::byte* const segment = context_.segment->base();
  if (!is_inside(header, context_.segment->size()))
    return end_peer(peer, fmt::format("its message {} leaves the segment", header.sequence));
  ++peer.applied;
  if (header.acknowledge) peer.acknowledge = true;
  switch (header.kind) {
    case Kind::put:
      apply_put(header, payload, segment);
      if (header.then_signal) apply_signal(header, segment);
      break;
    case Kind::signal:
      apply_signal(header, segment);
      break;
    case Kind::atomic:
      answer(peer, header, apply_atomic(header, segment));
      break;
    case Kind::get:
      answer(peer, header, 0);
      break;
    case Kind::hello:
      peer.hello_good = hello_is_good(peer);
      peer.hello_request = header.request;
      answer_hello(peer);
      break;
    default:
      break;
  }
}

void Engine::answer(Peer& peer, const Header& question, std::uint64_t value) {
  if (peer.endpoint == nullptr) return;
  Slot& slot = take_slot(peer, Kind::answer);
  Header& header = slot.message.header;
  header.request = question.request;
  header.operand = value;
  if (question.kind == Kind::get) {
    header.payload = question.element * question.count;
    gather(question, context_.segment->base(), slot.message.payload.data());
  }
  transmit(slot);
}

void Engine::take_answer(Peer& peer, const Header& header, const std::byte* payload) {
  const auto at = peer.requests.find(header.request);
  if (at == peer.requests.end()) return;  // its caller has given up
  Request& request = at->second;
  if (header.payload != request.element * request.count)
    return end_peer(peer, fmt::format("it answers with {} bytes, expected {}", header.payload,
                                      request.element * request.count));
  for (std::size_t i = 0; i < request.count; ++i)
    std::memcpy(request.target + i * request.stride, payload + i * request.element,
                request.element);
  request.value = header.operand;
  request.done = true;
  if (!request.awaited) peer.requests.erase(at);
}

}  // namespace shoal::transport::ucx
