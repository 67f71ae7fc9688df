// SPDX-License-Identifier: Apache-2.0
// RMA of the engine: transfers cut into pieces, and what orders and completes them.
#include <rdma/fi_errno.h>

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "transport/ofi/engine.hpp"
#include "transport/ofi/pieces.hpp"
#include "transport/ofi/wait.hpp"

namespace shoal::transport::ofi {

/// Memory that the provider may use as it is: everything, or what is registered.
bool Engine::usable(const void* local, std::size_t bytes) const {
  if (!local_registration_) return true;
  const auto* const at = static_cast<const std::byte*>(local);
  return at >= segment_->base() && at + bytes <= segment_->base() + segment_bytes_;
}

std::size_t Engine::longest_piece(const void* local, std::size_t bytes) const {
  std::size_t longest = settings_.network_chunk;
  for (const Line& line : lines_) longest = std::min(longest, line.rail->longest());
  return usable(local, bytes) ? longest : std::min(longest, kBounceBytes);
}

std::size_t Engine::pick_rail(Peer& peer, std::size_t bytes) {
  if (bytes < kSpreadBytes || peer.rails.size() == 1) return peer.home;
  peer.next = (peer.next + 1) % peer.rails.size();
  return peer.next;
}

/// Posts one piece; false: poll and try again.
bool Engine::try_rma(Transfer& transfer, Peer& peer, std::size_t rail, std::size_t offset,
                     std::byte* local, std::size_t bytes) {
  check_peer(peer, transfer.operation);
  if (peer.writes + peer.reads >= static_cast<std::uint32_t>(settings_.network_depth)) return false;
  Line& line = lines_[rail];
  const bool bounced = !usable(local, bytes);
  if (free_.first == nullptr || (bounced && line.bouncers.first == nullptr)) return false;
  Request& request = *free_.take();
  request.kind = transfer.write ? Request::Kind::write : Request::Kind::read;
  request.probe = false;
  request.rail = static_cast<std::uint8_t>(rail);
  request.pe = peer.pe;
  request.bounce = bounced ? line.bouncers.take() : nullptr;
  request.buffer = bounced ? request.bounce->buffer : nullptr;
  request.target = transfer.write ? nullptr : local;
  request.bytes = bytes;
  // A put that was copied into a bounce buffer does not use the caller's memory any more.
  request.batch = transfer.write && bounced ? nullptr : transfer.batch;
  if (transfer.write && bounced) std::memcpy(request.buffer, local, bytes);
  std::byte* const memory = bounced ? request.buffer : local;
  void* const descriptor = bounced ? line.bounces_region.descriptor : line.segment.descriptor;
  Peer::OnRail& on = peer.rails[rail];
  const ssize_t code = transfer.write
                           ? line.rail->write(on.address, on.segment, offset, memory, bytes,
                                              descriptor, delivery_, &request.context)
                           : line.rail->read(on.address, on.segment, offset, memory, bytes,
                                             descriptor, &request.context);
  if (code != 0) {
    if (bounced) line.bouncers.give(request.bounce);
    free_.give(&request);
    if (code == -FI_EAGAIN) return false;
    fail_peer(peer.pe, fmt::format("{} on rail {} ({}) of provider {}", error_text(code), rail,
                                   line.rail->domain(), provider_));
    check_peer(peer, transfer.operation);
  }
  if (request.batch != nullptr) ++request.batch->pending;
  if (transfer.write) {
    ++peer.writes;
    ++on.writes;
    peer.written = !delivery_;
  } else {
    ++peer.reads;
  }
  count_in_flight(peer.writes + peer.reads);
  return true;
}

void Engine::transfer(Transfer transfer, Pe pe, std::size_t offset, std::byte* local,
                      std::size_t bytes) {
  Peer& peer = peers_[static_cast<std::size_t>(pe)];
  const std::size_t piece =
      piece_bytes(bytes, std::max<std::size_t>(peer.rails.size(), 1), longest_piece(local, bytes));
  Mark mark;
  std::size_t rail = kMaxRails;
  wait(transfer.operation, pe, [&] {
    // As many pieces at a time as go.
    while (bytes != 0) {
      check_peer(peer, transfer.operation);
      if (transfer.write && peer.fenced) {
        if (!done(peer, mark)) return false;
        peer.fenced = false;
      }
      const std::size_t length = std::min(piece, bytes);
      if (rail == kMaxRails) rail = pick_rail(peer, length);
      if (!try_rma(transfer, peer, rail, offset, local, length)) return false;
      rail = kMaxRails;
      offset += length;
      local += length;
      bytes -= length;
    }
    if (transfer.eager) ask_eagerly(peer);
    return true;
  });
}

void Engine::ask_eagerly(Peer& peer) {
  if (!peer.written || !not_before(peer.acknowledged, peer.asked)) return;
  Message message;
  message.flags = flag::acknowledge;
  try_request(peer, message, nullptr, nullptr, nullptr);  // else quiet asks
}

void Engine::write(const char* operation, Pe pe, std::size_t offset, const void* source,
                   std::size_t bytes, Batch* batch, bool eager) {
  transfer({operation, true, eager, batch}, pe, offset,
           static_cast<std::byte*>(const_cast<void*>(source)), bytes);
}

void Engine::read(const char* operation, void* target, Pe pe, std::size_t offset, std::size_t bytes,
                  Batch* batch) {
  transfer({operation, false, false, batch}, pe, offset, static_cast<std::byte*>(target), bytes);
}

void Engine::finish(const char* operation, Pe pe, Batch& batch) {
  const Peer& peer = peers_[static_cast<std::size_t>(pe)];
  wait(operation, pe, [&] {
    if (batch.pending == 0) return true;
    check_peer(peer, operation);
    return false;
  });
  const std::lock_guard guard(lock_);
  check_peer(peer, operation);
}

void Engine::abandon(Batch& batch) noexcept {
  const std::lock_guard guard(lock_);
  if (batch.pending == 0) return;
  for (Request& request : requests_)
    if (request.batch == &batch) {
      request.batch = nullptr;
      request.target = nullptr;
    }
  for (Peer& peer : peers_)
    for (Fetch& fetch : peer.fetches)
      if (fetch.batch == &batch) {
        fetch.batch = nullptr;
        fetch.target = nullptr;
      }
}

bool Engine::writes_done(const Peer& peer) const {
  if (!delivery_ || peer.writes == 0) return true;
  return ordered_ && peer.writes == peer.rails[peer.home].writes;
}

/// All that was sent and put before the first call with this mark is complete at its target, and
/// local memory is free.
bool Engine::done(Peer& peer, Mark& mark) {
  if (!mark.set) {
    const bool covered =
        !peer.written && (peer.sent == peer.acknowledged || peer.asked == peer.sent);
    if (!covered) {
      Message message;
      message.flags = flag::acknowledge;
      if (!try_request(peer, message, nullptr, nullptr, nullptr)) return false;
    }
    mark.sequence = peer.sent;
    mark.set = true;
  }
  return not_before(peer.acknowledged, mark.sequence) && peer.writes == 0;
}

void Engine::fence(Pe pe) {
  const std::lock_guard guard(lock_);
  Peer& peer = peers_[static_cast<std::size_t>(pe)];
  if (peer.written || peer.writes != 0 || peer.sent != peer.acknowledged) peer.fenced = true;
}

void Engine::quiet() {
  std::vector<Mark> marks(peers_.size());
  wait("quiet", -1, [&] {
    bool all = true;
    for (Peer& peer : peers_) {
      if (!peer.busy() || peer.loss_told) continue;
      peer.loss_told =
          !peer.failure.empty();  // what was on its way to it is lost; nothing new is accepted
      check_peer(peer, "quiet");
      if (!done(peer, marks[static_cast<std::size_t>(peer.pe)]) || peer.reads != 0 ||
          peer.fetching != 0)
        all = false;
    }
    return all;
  });
}

}  // namespace shoal::transport::ofi
