// SPDX-License-Identifier: Apache-2.0
// RMA: transfers that are too long for messages, cut into requests; flushes; quiet.
#include <algorithm>

#include "base/check.hpp"
#include "transport/ucx/engine.hpp"

namespace shoal::transport::ucx {

/// A put or get under way. Lives until its caller and all of its requests are done with it: a
/// caller may give up first.
struct Engine::Transfer {
  Peer& peer;
  std::size_t in_flight = 0;
  bool abandoned = false;

  struct Abandon {
    void operator()(Transfer* transfer) const {
      transfer->abandoned = true;
      if (transfer->in_flight == 0) delete transfer;
    }
  };
  using Owner = std::unique_ptr<Transfer, Abandon>;
};

void Callbacks::on_transferred(void* request, ucs_status_t status, void* user_data) {
  ucp_request_free(request);
  auto& transfer = *static_cast<Engine::Transfer*>(user_data);
  Peer& peer = transfer.peer;
  --peer.in_flight;
  if (--transfer.in_flight == 0 && transfer.abandoned) delete &transfer;
  if (status != UCS_OK)
    peer.engine->end_peer(peer, fmt::format("a transfer failed: {}", text_of(status)));
}

void Engine::issue(Transfer& transfer, Direction direction, RmaTarget target, std::byte* local,
                   std::size_t bytes) {
  Peer& peer = transfer.peer;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &Callbacks::on_transferred;
  param.user_data = &transfer;
  ++peer.issued;
  if (direction == Direction::put) peer.last_put = peer.issued;
  void* const status =
      direction == Direction::put
          ? ucp_put_nbx(peer.endpoint, local, bytes, target.address, target.key, &param)
          : ucp_get_nbx(peer.endpoint, local, bytes, target.address, target.key, &param);
  if (UCS_PTR_IS_PTR(status)) {
    ++peer.in_flight;
    ++transfer.in_flight;
  } else if (UCS_PTR_IS_ERR(status)) {
    end_peer(peer, fmt::format("a transfer failed: {}", text_of(UCS_PTR_STATUS(status))));
  }
}

/// RMA has no place in the order of messages: waits for what a fence was put behind.
void Engine::await_fenced(Lock& lock, Peer& peer, const Operation& operation) {
  const std::uint64_t messages = peer.fenced_messages, transfers = peer.fenced_transfers;
  if (peer.acknowledged < messages && peer.asked < messages) ask_for_acknowledgement(peer);
  wait(lock, peer, operation, [&] {
    if (peer.flushed < transfers) flush(peer);
    return peer.acknowledged >= messages && peer.flushed >= transfers;
  });
}

void Engine::transfer(Lock& lock, Peer& peer, Direction direction, std::size_t offset,
                      std::byte* local, std::size_t bytes, bool blocking) {
  const Operation operation{direction == Direction::put ? "put" : "get", bytes};
  await_fenced(lock, peer, operation);
  const Transfer::Owner transfer(new Transfer{peer});
  for (std::size_t at = 0; at < bytes; at += chunk_) {
    wait(lock, peer, operation, [&] { return peer.unacknowledged() + peer.in_flight < depth_; });
    if (peer.ended) throw_ended(peer, operation);
    issue(*transfer, direction, {peer.base + offset + at, peer.key}, local + at,
          std::min(chunk_, bytes - at));
  }
  if (blocking) wait(lock, peer, operation, [&] { return transfer->in_flight == 0; });
  if (peer.ended) throw_ended(peer, operation);
}

void Engine::probe(Peer& peer, Direction direction, RmaTarget target, void* local,
                   std::size_t bytes) {
  const Transfer::Owner transfer(new Transfer{peer});
  issue(*transfer, direction, target, static_cast<std::byte*>(local), bytes);
}

void Engine::put(Lock& lock, Peer& peer, std::size_t offset, const void* source, std::size_t bytes,
                 bool blocking) {
  // UCX does not write to the source of a put.
  transfer(lock, peer, Direction::put, offset,
           const_cast<std::byte*>(static_cast<const std::byte*>(source)), bytes, blocking);
}

void Engine::get(Lock& lock, Peer& peer, std::size_t offset, void* target, std::size_t bytes,
                 bool blocking) {
  transfer(lock, peer, Direction::get, offset, static_cast<std::byte*>(target), bytes, blocking);
}

void Engine::flush(Peer& peer) {
  if (peer.flushing || peer.ended || peer.flushed == peer.issued) return;
  peer.flush_target = peer.issued;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &Callbacks::on_flushed;
  param.user_data = &peer;
  void* const status = ucp_ep_flush_nbx(peer.endpoint, &param);
  if (UCS_PTR_IS_PTR(status)) {
    peer.flushing = true;
  } else if (UCS_PTR_IS_ERR(status)) {
    end_peer(peer, fmt::format("a flush failed: {}", text_of(UCS_PTR_STATUS(status))));
  } else {
    peer.flushed = peer.flush_target;
  }
}

void Callbacks::on_flushed(void* request, ucs_status_t status, void* user_data) {
  ucp_request_free(request);
  Peer& peer = *static_cast<Peer*>(user_data);
  peer.flushing = false;
  if (status != UCS_OK)
    return peer.engine->end_peer(peer, fmt::format("a flush failed: {}", text_of(status)));
  peer.flushed = peer.flush_target;
  peer.engine->send_held(peer);
}

void Engine::quiet(Lock& lock) {
  const Operation operation{"quiet"};
  struct Mark {
    Peer* peer;
    std::uint64_t messages, transfers, requests;
  };
  std::vector<Mark> marks;
  for (Peer& peer : peers_) {
    if (!peer.connected || peer.ended || peer.idle()) continue;
    ask_for_acknowledgement(peer);
    flush(peer);
    marks.push_back({&peer, peer.sent, peer.issued, peer.requests_made});
  }
  for (const Mark& mark : marks) {
    Peer& peer = *mark.peer;
    // One that ends meanwhile must not keep this from waiting for the others.
    wait(lock, peer, operation, [&] {
      if (peer.flushed < mark.transfers) flush(peer);
      const bool answered = peer.requests.empty() || peer.requests.begin()->first > mark.requests;
      return peer.ended ||
             (peer.acknowledged >= mark.messages && peer.flushed >= mark.transfers && answered);
    });
  }
  for (Peer& peer : peers_) {
    if (!peer.lost) continue;
    peer.lost = false;
    throw_ended(peer, operation);
  }
}

}  // namespace shoal::transport::ucx
