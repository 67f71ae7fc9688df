// SPDX-License-Identifier: Apache-2.0
#include "transport/staged/agent.hpp"

#include <algorithm>
#include <cstring>

#include "base/log.hpp"
#include "memory/device_heap.hpp"
#include "transport/words.hpp"

namespace shoal::transport::staged {
namespace {

/// True if the data are in a chunk. Such requests can be served together.
bool moves_chunk(const Request& request) {
  switch (request.kind) {
    case Kind::put:
      return request.data_in == DataIn::chunk;
    case Kind::put_strided:
    case Kind::get:
    case Kind::get_strided:
      return true;
    case Kind::atomic:
    case Kind::signal:
      return false;
  }
  return false;
}

bool is_get(const Request& request) {
  return request.kind == Kind::get || request.kind == Kind::get_strided;
}

bool is_strided(const Request& request) {
  return request.kind == Kind::put_strided || request.kind == Kind::get_strided;
}

std::size_t size_of(const Request& request) {
  return is_strided(request) ? request.bytes * request.count : request.bytes;
}

}  // namespace

Agent::Agent(const Context& context, const Layout& layout, Transport& own,
             std::span<const Pe> peers)
    : layout_(layout),
      segment_(context.segment),
      heap_(context.device_heap),
      area_(context.staging),
      my_pe_(context.my_pe),
      host_route_(context.host_route),
      own_(own),
      peers_(peers_of(peers)),
      thread_(
          {.pe = my_pe_,
           .name = "shoal-staged",
           .wait = progress_wait_of(context.settings->progress_wait)},
          [this] { return serve_all(); }, [this] { activate(); }) {}

std::vector<Agent::Peer> Agent::peers_of(std::span<const Pe> pes) {
  std::vector<Peer> peers;
  for (const Pe pe : pes) peers.push_back({.pe = pe});
  return peers;
}

void Agent::activate() {
  try {
    heap_->device().activate();
  } catch (const std::exception& error) {
    log::warn("SHOAL-N360: PE {}: the thread of transport staged cannot use the GPU: {}", my_pe_,
              error.what());
  }
}

ServiceThread::Polled Agent::serve_all() {
  bool served = false;
  for (Peer& peer : peers_) served |= serve(peer);
  return served ? ServiceThread::Polled::something : ServiceThread::Polled::nothing;
}

bool Agent::read_request(Pe from, std::uint64_t number, Request& request) const noexcept {
  const std::byte* const place = segment_->base() + area_ + layout_.request(from, number);
  load_word<std::uint64_t>(&request.number, place);
  if (request.number != number) return false;
  constexpr std::size_t kNumber = sizeof request.number;
  std::memcpy(bytes_of(request) + kNumber, place + kNumber, sizeof request - kNumber);
  return true;
}

bool Agent::serve(Peer& peer) {
  if (peer.lost) return false;
  Requests together;
  Request next;
  while (together.size() < layout_.depth() &&
         read_request(peer.pe, peer.done + together.size() + 1, next)) {
    if (!together.empty() && (!moves_chunk(next) || is_get(next) != is_get(together.front())))
      break;
    together.push_back(next);
    if (!moves_chunk(next)) break;
  }
  if (together.empty()) return false;
  const std::uint64_t last = peer.done + together.size();
  std::string failure;
  try {
    apply(peer, together);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  try {
    if (!failure.empty()) refuse(peer, peer.done + 1, failure);
    complete(peer, last);
  } catch (const std::exception& error) {
    log::debug("PE {}: transport staged cannot reply to PE {}: {}", my_pe_, peer.pe, error.what());
    peer.lost = true;  // it has ended, or its deadline will pass
  }
  peer.done = last;
  return true;
}

void Agent::apply(Peer& peer, const Requests& requests) {
  const Request& first = requests.front();
  switch (first.kind) {
    case Kind::put:
    case Kind::put_strided:
      if (moves_chunk(first)) return fetch_and_store(peer, requests);
      return own_.put(my_pe_, first.offset, first.payload, first.bytes);
    case Kind::get:
    case Kind::get_strided:
      return load_and_send(peer, requests);
    case Kind::atomic:
      peer.value = own_.atomic(my_pe_, static_cast<AtomicOp>(first.op), first.offset, first.operand,
                               first.compare, first.width);
      return host_route_(peer.pe).put(peer.pe,
                                      area_ + layout_.reply(my_pe_) + offsetof(Reply, value),
                                      &peer.value, sizeof peer.value);
    case Kind::signal:
      return own_.signal(my_pe_, first.offset, static_cast<SignalOp>(first.op), first.operand);
  }
}

void Agent::fetch_and_store(const Peer& peer, const Requests& puts) {
  Transport& route = host_route_(peer.pe);
  std::byte* const base = segment_->base();
  for (std::size_t i = 0; i < puts.size(); ++i)
    route.get_nbi(base + chunk(i), peer.pe, puts[i].chunk, size_of(puts[i]));
  route.quiet();
  for (std::size_t i = 0; i < puts.size(); ++i) {
    const Request& put = puts[i];
    if (is_strided(put)) {
      own_.put_strided(my_pe_, put.offset, put.stride, base + chunk(i), put.bytes, put.bytes,
                       put.count);
    } else {
      own_.put_nbi(my_pe_, put.offset, base + chunk(i), put.bytes);
    }
  }
  own_.quiet();
}

void Agent::load_and_send(const Peer& peer, const Requests& gets) {
  Transport& route = host_route_(peer.pe);
  std::byte* const base = segment_->base();
  for (std::size_t i = 0; i < gets.size(); ++i) {
    const Request& get = gets[i];
    if (is_strided(get)) {
      own_.get_strided(base + chunk(i), get.bytes, my_pe_, get.offset, get.stride, get.bytes,
                       get.count);
    } else {
      own_.get_nbi(base + chunk(i), my_pe_, get.offset, get.bytes);
    }
  }
  own_.quiet();
  for (std::size_t i = 0; i < gets.size(); ++i)
    route.put_nbi(peer.pe, gets[i].chunk, base + chunk(i), size_of(gets[i]));
  route.quiet();
}

void Agent::complete(const Peer& peer, std::uint64_t number) {
  host_route_(peer.pe).signal(peer.pe, area_ + layout_.reply(my_pe_) + offsetof(Reply, completed),
                              SignalOp::set, number);
}

void Agent::refuse(const Peer& peer, std::uint64_t number, const std::string& reason) {
  log::warn("SHOAL-N361: PE {}: an operation of PE {} on this heap failed: {}", my_pe_, peer.pe,
            reason);
  Reply reply{};
  reply.failed = number;
  std::memcpy(reply.reason, reason.data(), std::min(reason.size(), Reply::kReason - 1));
  constexpr std::size_t start = offsetof(Reply, failed);
  host_route_(peer.pe).put(peer.pe, area_ + layout_.reply(my_pe_) + start, bytes_of(reply) + start,
                           sizeof reply - start);
}

}  // namespace shoal::transport::staged
