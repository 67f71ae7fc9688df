// SPDX-License-Identifier: Apache-2.0
#include "transport/ofi/engine.hpp"

#include <rdma/fi_errno.h>

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "base/log.hpp"
#include "transport/ofi/handshake.hpp"
#include "transport/ofi/pieces.hpp"
#include "transport/ofi/wait.hpp"

namespace shoal::transport::ofi {
namespace {

constexpr std::size_t kBounces = 32;  ///< a rail
constexpr std::size_t kSenders = 64;  ///< a rail
constexpr int kPollRounds = 4;        ///< the lock is not held for longer
constexpr int kPollEntries = 32;

}  // namespace

Engine::Engine(const Context& context)
    : my_pe_(context.my_pe),
      settings_(*context.settings),
      segment_(context.segment),
      segment_bytes_(context.segment->size()),
      failure_(context.failure),
      scratch_(scratch_bytes(context.n_pes)),
      peers_(static_cast<std::size_t>(context.n_pes)) {
  std::memcpy(&world_, context.world.data(), sizeof world_);
  for (Pe pe = 0; pe < context.n_pes; ++pe) peers_[static_cast<std::size_t>(pe)].pe = pe;
  answering_.reserve(peers_.size());
  failed_.reserve(peers_.size());
  ended_.reserve(peers_.size());
  open_rails(context);
}

void Engine::open_rails(const Context& context) {
  Provider provider = choose_provider(context);
  provider_ = provider.name;
  const auto depth = static_cast<std::size_t>(settings_.network_depth);
  const auto n_peers =
      static_cast<std::size_t>(std::count(context.wanted.begin(), context.wanted.end(), true));
  if (provider.rails.size() > kMaxRails) provider.rails.resize(kMaxRails);
  std::size_t receive_size = SIZE_MAX, requests = 0;
  for (const Info& info : provider.rails) {
    receive_size = std::min(receive_size, info->rx_attr->size);
    requests += info->tx_attr->size;
  }
  window_ = window_of(receive_size, n_peers, depth, kSpareMessages);
  requests = std::clamp<std::size_t>(depth * n_peers, 16, std::max<std::size_t>(requests, 16));
  requests_.resize(requests);
  for (Request& request : requests_) free_.give(&request);
  const std::size_t receives = n_peers * (window_ + depth + kSpareMessages);
  ordered_ = true;
  for (Info& info : provider.rails) {
    Line line;
    line.rail = std::make_unique<Rail>(std::move(info), requests + receives + kSenders);
    ordered_ = ordered_ && line.rail->messages_after_writes();
    local_registration_ = local_registration_ || line.rail->local_registration();
    line.segment = line.rail->enroll(segment_->base(), segment_bytes_, true);
    line.scratch = line.rail->enroll(scratch_.data(), scratch_.size(), true);
    lines_.push_back(std::move(line));
  }
  delivery_ = !ordered_ || lines_.size() > 1;
  make_pools();
}

void Engine::make_pools() {
  for (std::size_t r = 0; r < lines_.size(); ++r) {
    Line& line = lines_[r];
    const auto pool = [&](std::vector<Request>& requests, std::vector<std::byte>& memory,
                          Registered& region, std::size_t count, std::size_t bytes,
                          FreeList& list) {
      memory.resize(count * bytes);
      requests.resize(count);
      for (std::size_t i = 0; i < count; ++i) {
        requests[i].buffer = memory.data() + i * bytes;
        requests[i].rail = static_cast<std::uint8_t>(r);
        list.give(&requests[i]);
      }
      if (local_registration_) region = line.rail->enroll(memory.data(), memory.size(), false);
    };
    pool(line.sending, line.outgoing, line.outgoing_region, kSenders, kMessageBytes, line.senders);
    if (local_registration_)
      pool(line.bouncing, line.bounces, line.bounces_region, kBounces, kBounceBytes, line.bouncers);
  }
}

Engine::~Engine() {
  // Regions before endpoints, endpoints before the memory that they receive into.
  for (Line& line : lines_) {
    for (Registered* const region : {&line.segment, &line.scratch, &line.messages_region,
                                     &line.outgoing_region, &line.bounces_region})
      region->region.reset();
    line.rail.reset();
  }
}

std::vector<std::byte> Engine::address() {
  AddressHeader header;
  header.rails = lines_.size();
  header.segment_bytes = segment_bytes_;
  header.window = window_;
  std::strncpy(header.provider, provider_.c_str(), sizeof header.provider - 1);
  std::vector<std::byte> bytes(sizeof header + lines_.size() * sizeof(RailAddress));
  std::memcpy(bytes.data(), &header, sizeof header);
  for (std::size_t r = 0; r < lines_.size(); ++r) {
    RailAddress address;
    address.segment = lines_[r].segment.remote;
    address.scratch = lines_[r].scratch.remote;
    lines_[r].rail->name(address);
    std::memcpy(bytes.data() + sizeof header + r * sizeof address, &address, sizeof address);
  }
  return bytes;
}

void Engine::add_peer(Pe pe, std::span<const std::byte> bytes) {
  AddressHeader header;
  require(bytes.size() >= sizeof header, Code::mismatch,
          "its address has {} bytes, expected at least {}", bytes.size(), sizeof header);
  std::memcpy(&header, bytes.data(), sizeof header);
  header.provider[sizeof header.provider - 1] = '\0';
  require(header.rails >= 1 && header.rails <= kMaxRails && header.window >= 1 &&
              bytes.size() == sizeof header + header.rails * sizeof(RailAddress),
          Code::mismatch, "its address has {} bytes for {} rails", bytes.size(), header.rails);
  require(header.provider == provider_, Code::mismatch, "it uses provider {}, this PE {}",
          header.provider, provider_);
  require(header.segment_bytes == segment_bytes_, Code::mismatch,
          "its memory has {} bytes, expected {}", header.segment_bytes, segment_bytes_);
  Peer& peer = peers_[static_cast<std::size_t>(pe)];
  const std::size_t rails = std::min<std::size_t>(header.rails, lines_.size());
  for (std::size_t r = 0; r < rails; ++r) {
    RailAddress address;
    std::memcpy(&address, bytes.data() + sizeof header + r * sizeof address, sizeof address);
    Peer::OnRail on;
    on.address = lines_[r].rail->insert(address);
    on.segment = address.segment;
    on.scratch = address.scratch;
    peer.rails.push_back(on);
  }
  peer.home = home_rail(static_cast<std::size_t>(my_pe_), static_cast<std::size_t>(pe), rails);
  peer.next = peer.home;
  peer.window = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(header.window, static_cast<std::uint64_t>(settings_.network_depth)));
  peer.fetches.resize(peer.window);
  peer.known = true;
}

void Engine::post_receives() {
  for (std::size_t r = 0; r < lines_.size(); ++r) {
    Line& line = lines_[r];
    std::size_t count = 0;
    for (const Peer& peer : peers_)
      if (peer.known) count += kSpareMessages + (peer.home == r ? window_ + peer.window : 0);
    line.messages.resize(count * kMessageBytes);
    line.receiving.resize(count);
    if (local_registration_ && count != 0)
      line.messages_region = line.rail->enroll(line.messages.data(), line.messages.size(), false);
    for (std::size_t i = 0; i < count; ++i) {
      Request& request = line.receiving[i];
      request = Request{};
      request.kind = Request::Kind::receive;
      request.rail = static_cast<std::uint8_t>(r);
      request.buffer = line.messages.data() + i * kMessageBytes;
      post_receive(line, request);
    }
  }
}

void Engine::post_receive(Line& line, Request& request) {
  const ssize_t code = line.rail->receive(request.buffer, kMessageBytes,
                                          line.messages_region.descriptor, &request.context);
  if (code == 0) return;
  line.unposted.push_back(&request);
  if (code != -FI_EAGAIN)
    log::warn("PE {}: transport ofi: fi_recv on {} failed: {}", my_pe_, line.rail->domain(),
              error_text(code));
}

bool Engine::poll() {
  bool any = false;
  for (std::size_t r = 0; r < lines_.size(); ++r) {
    Line& line = lines_[r];
    for (int round = 0; round < kPollRounds; ++round) {
      fi_cq_msg_entry entries[kPollEntries];
      const ssize_t count = line.rail->poll(entries);
      for (ssize_t i = 0; i < count; ++i) handle(r, entries[i]);
      if (count == -FI_EAVAIL) handle_fault(r);
      any = any || count != 0;
      if (count < kPollEntries && count != -FI_EAVAIL) break;
    }
    if (!line.unposted.empty()) {
      std::vector<Request*> again;
      again.swap(line.unposted);
      for (Request* const request : again) post_receive(line, *request);
    }
  }
  if (!answering_.empty()) send_answers();
  return any;
}

bool Engine::drive() noexcept {
  driven_.fetch_add(1, std::memory_order_relaxed);
  if (!lock_.try_lock()) return false;
  const std::lock_guard guard(lock_, std::adopt_lock);
  return poll();
}

void Engine::handle(std::size_t rail, const fi_cq_msg_entry& entry) {
  Request& request = *static_cast<Request*>(entry.op_context);
  if (request.kind != Request::Kind::receive) return complete(request);
  take_message(rail, request.buffer, entry.len);
  post_receive(lines_[rail], request);
}

void Engine::handle_fault(std::size_t rail) {
  const Rail::Fault fault = lines_[rail].rail->fault();
  if (fault.code == 0) return;
  const std::string text = fmt::format("{} on rail {} ({}) of provider {}", fault.text, rail,
                                       lines_[rail].rail->domain(), provider_);
  auto* const request = static_cast<Request*>(fault.context);
  if (request == nullptr) return log::warn("PE {}: transport ofi: {}", my_pe_, text);
  if (request->kind == Request::Kind::receive) {
    log::warn("PE {}: transport ofi: a message was not received: {}", my_pe_, text);
    return post_receive(lines_[rail], *request);
  }
  fail_peer(request->pe, text);
  request->target = nullptr;  // there is nothing to copy
  complete(*request);
}

void Engine::complete(Request& request) {
  Peer& peer = peers_[static_cast<std::size_t>(request.pe)];
  Line& line = lines_[request.rail];
  if (request.kind == Request::Kind::send) {
    if (request.probe) peer.probing = false;
    return line.senders.give(&request);
  }
  if (request.batch != nullptr) --request.batch->pending;
  if (request.kind == Request::Kind::write) {
    --peer.writes;
    --peer.rails[request.rail].writes;
  } else {
    --peer.reads;
    if (request.buffer != nullptr && request.target != nullptr)
      std::memcpy(request.target, request.buffer, request.bytes);
  }
  if (request.bounce != nullptr) line.bouncers.give(request.bounce);
  free_.give(&request);
}

void Engine::fail_peer(Pe pe, const std::string& text) {
  Peer& peer = peers_[static_cast<std::size_t>(pe)];
  if (!peer.failure.empty()) return;
  peer.failure = text;
  peer.replies.clear();
  peer.welcomes.clear();
  peer.due = false;
  for (Fetch& fetch : peer.fetches) fetch = Fetch{};  // their calls see the failure
  peer.fetching = 0;
  log::debug("PE {}: transport ofi: connection to PE {} lost: {}", my_pe_, pe, text);
  if (!peer.connected) return;  // then reach() says so
  failed_.push_back({pe, "connection lost: " + text});
  failures_.store(failed_.size(), std::memory_order_release);
}

void Engine::check_peer(const Peer& peer, const char* operation) const {
  if (peer.failure.empty()) [[likely]]
    return;
  fail(Code::peer_failed, "{} of PE {} to PE {}: the connection of transport ofi is lost: {}",
       operation, my_pe_, peer.pe, peer.failure);
}

void Engine::time_out(const char* operation, Pe pe) const {
  std::string state;
  for (const Peer& peer : peers_) {
    if ((pe >= 0 && peer.pe != pe) || (pe < 0 && !peer.busy())) continue;
    if (!state.empty()) state += "; ";
    state +=
        fmt::format("to PE {} (rail {}, {}) {} writes, {} reads and {} messages are on their way",
                    peer.pe, peer.home, lines_[peer.home].rail->domain(), peer.writes, peer.reads,
                    peer.sent - peer.acknowledged);
  }
  fail(
      Code::timeout,
      "{} timed out after {} ms on PE {}: transport ofi, provider {}: {}. Setting: SHOAL_TIMEOUT_MS",
      operation, settings_.timeout.count(), my_pe_, provider_, state);
}

void Engine::suspect(Pe pe) {
  // A provider may not notice that a peer is gone: it connects again, for as long as one waits.
  for (Peer& peer : peers_) {
    if (!peer.connected || (pe >= 0 && peer.pe != pe)) continue;
    const std::string failure = failure_ ? failure_(peer.pe) : std::string();
    const std::lock_guard guard(lock_);
    if (!failure.empty()) fail_peer(peer.pe, failure);
    if (peer.failure.empty() && (pe >= 0 || peer.busy())) probe(peer);
  }
}

std::span<const Transport::Ended> Engine::ended() noexcept {
  if (failures_.load(std::memory_order_acquire) == ended_.size()) return ended_;
  const std::lock_guard guard(lock_);
  while (ended_.size() < failed_.size())
    ended_.push_back(failed_[ended_.size()]);  // room was reserved
  return ended_;
}

}  // namespace shoal::transport::ofi
