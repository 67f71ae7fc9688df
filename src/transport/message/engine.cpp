// SPDX-License-Identifier: Apache-2.0
// Calls of this PE: startup, requests, transfers, waits, completion. receive.cpp has the side of
// the target.
#include "transport/message/engine.hpp"
#include "transport/message/address.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include "base/backoff.hpp"
#include "base/check.hpp"
#include "base/deadline.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "base/nap.hpp"
#include "transport/message/handshake.hpp"
#include "transport/message/pieces.hpp"
#include "transport/scoped_timeout.hpp"

namespace shoal::transport::message {
namespace {

/// Interval at which a waiting call asks the world and the network whether its peer is alive.
constexpr std::chrono::milliseconds kProbeInterval{20};
/// Longest time between two messages to a peer that serves RMA requests: it polls without sleep for
/// Backoff::kYieldTime after each.
constexpr std::chrono::microseconds kAnnouncementInterval = Backoff::kYieldTime / 2;
/// Most bytes of requests between them: a message may arrive after the data of earlier writes.
constexpr std::size_t kAnnouncementBytes = std::size_t{512} << 10;
/// A look at the clock takes a fiftieth of a put of 8 bytes: RMA requests to a peer, and polls of a
/// waiting call, between two looks.
constexpr std::uint32_t kRequestsPerLook = 8;
constexpr std::uint32_t kPollsPerLook = 8;
/// For completing what is in flight when a PE closes its world.
constexpr std::chrono::milliseconds kLeaveTimeout{1000};

/// In front of the network's own address.
struct AddressHeader {
  std::uint64_t segment_bytes = 0;
  std::uint64_t window = 0;
};

std::string describe(const Operation& operation) {
  if (operation.bytes == 0) return operation.name;
  return fmt::format("{} of {} bytes", operation.name, operation.bytes);
}

}  // namespace

Engine::Engine(const Context& context, std::size_t rails)
    : my_pe_(context.my_pe),
      settings_(*context.settings),
      segment_(context.segment),
      failure_(context.failure),
      alternatives_(context.alternatives),
      depth_(static_cast<std::uint32_t>(context.settings->network_depth)),
      scratch_rails_(rails),
      scratch_(scratch_bytes(context.n_pes, rails)),
      peers_(static_cast<std::size_t>(context.n_pes)) {
  std::memcpy(&world_, context.world.data(), sizeof world_);
  for (Pe pe = 0; pe < context.n_pes; ++pe) peer(pe).pe = pe;
  replying_.reserve(peers_.size());
  failed_.reserve(peers_.size());
  ended_.reserve(peers_.size());
}

Engine::~Engine() {
  if (network_ != nullptr) network_->close();
}

std::vector<std::byte> Engine::address() {
  std::vector<std::byte> bytes;
  append(bytes, AddressHeader{segment_->size(), network_->traits().window});
  const std::vector<std::byte> network = network_->address();
  bytes.insert(bytes.end(), network.begin(), network.end());
  return bytes;
}

void Engine::add_peer(Pe pe, std::span<const std::byte> bytes) {
  const auto header = header_of<AddressHeader>(bytes);
  require(header.segment_bytes == segment_->size(), Code::mismatch,
          "SHOAL-N310: its segment has {} bytes, expected {}", header.segment_bytes,
          segment_->size());
  require(header.window >= 1, Code::mismatch, "SHOAL-N310: it grants a window of no messages");
  Peer& added = peer(pe);
  network_->open(added, bytes.subspan(sizeof header));
  added.home = added.newest_spread =
      home_rail(static_cast<std::size_t>(my_pe_), static_cast<std::size_t>(pe), added.rails);
  added.window = static_cast<std::uint32_t>(std::min<std::uint64_t>(header.window, depth_));
  added.expected.resize(added.window);
  added.known = true;
}

void Engine::listen() {
  network_->listen(peers_);
}

void Engine::attach(std::unique_ptr<Network> network) {
  network_ = std::move(network);
  hides_rma_ = network_->traits().hides_rma;
  polls_per_yield_ = network_->traits().polls_per_yield;
}

bool Engine::poll() {
  return poll(hides_rma_ ? Clock::now() : Clock::time_point());
}

/// `now`: the time a few polls ago; the epoch of the clock: announces nothing.
bool Engine::poll(Clock::time_point now) {
  const bool any = network_->poll();
  for (std::size_t i = 0; i < replying_.size();) {
    Peer& peer = this->peer(replying_[i]);
    if (!send_replies(peer)) {
      ++i;  // the network is busy
      continue;
    }
    peer.listed = false;
    replying_[i] = replying_.back();
    replying_.pop_back();
  }
  if (hides_rma_) announce_all(now);
  return any;
}

bool Engine::progress() noexcept {
  const std::uint32_t polls = caller_polls_.fetch_add(1, std::memory_order_relaxed);
  if (!lock_.try_lock()) return false;  // the thread that has it polls
  const std::lock_guard guard(lock_, std::adopt_lock);
  return polls % kPollsPerLook == 0 ? poll() : poll(Clock::time_point());
}

/// Polls until `ready()`, which is called with the lock held and may throw. Throws Error{timeout}.
/// `pe`: the PE that is waited for; negative: all.
template <typename Ready>
void Engine::wait(const Operation& operation, Pe pe, Ready&& ready) {
  try {
    wait_for(operation, pe, ready);
  } catch (const Error& error) {
    if (error.code() == Code::peer_failed) throw_with_cause(error, pe);
    throw;
  }
}

/// The peer may have ended because of another PE: adds the failure that the world knows first, once
/// it does. Without the lock.
void Engine::throw_with_cause(const Error& error, Pe pe) const {
  const Clock::time_point end = wait_deadline(2 * kFailureReportTimeout);
  std::string cause;
  while (failure_ && (cause = failure_(pe)).empty() && Clock::now() < end)
    nap(std::chrono::milliseconds(1));
  const bool known = cause.empty() || cause.starts_with(fmt::format("PE {}: ", pe)) ||
                     std::string_view(error.what()).find(cause) != std::string_view::npos;
  if (known) throw Error(error);
  shoal::fail(error.code(), "SHOAL-N311: {}. The first failure: {}", reason_of(error), cause);
}

template <typename Ready>
void Engine::wait_for(const Operation& operation, Pe pe, Ready& ready) {
  {
    const std::lock_guard guard(lock_);
    if (ready()) return;
    poll(Clock::time_point());
    if (ready()) return;
  }
  const Clock::time_point start = Clock::now();
  Clock::time_point next_probe = start + kProbeInterval;
  const Clock::time_point end = wait_deadline(settings_.timeout, start);
  Deadline deadline(end, start);
  Backoff backoff;
  Clock::time_point now = start;
  int empty = 0;
  for (std::uint32_t since_look = 1;; ++since_look) {
    bool any = false;
    caller_polls_.fetch_add(1, std::memory_order_relaxed);
    {
      const std::lock_guard guard(lock_);
      any = poll(now);
      if (ready()) return;
      if (deadline.passed(now)) throw_timeout(operation, pe, end - start);
    }
    if (now >= next_probe) {
      check_alive(pe);
      throw_if_interrupted(operation.name);
      next_probe = Clock::now() + kProbeInterval;
    }
    if (any) {
      backoff.reset();
      empty = 0;
    } else if (++empty >= polls_per_yield_ || backoff.sleeps()) {
      backoff();
      empty = 0;
      since_look = kPollsPerLook;
    }
    if (since_look >= kPollsPerLook) {
      now = Clock::now();
      since_look = 0;
    }
  }
}

/// A network may not notice the end of a peer: asks the world, and sends a probe.
void Engine::check_alive(Pe pe) {
  for (Peer& peer : peers_) {
    if (!peer.connected || (pe >= 0 && peer.pe != pe)) continue;
    std::string failure = failure_ ? failure_(peer.pe) : std::string();
    const std::lock_guard guard(lock_);
    if (!failure.empty()) fail_peer(peer, std::move(failure), true);
    if (!network_->traits().probes || !peer.failure.empty() || peer.probing) continue;
    if (pe < 0 && !is_busy(peer)) continue;
    Message probe;
    probe.kind = Kind::probe;
    peer.probing = network_->send(peer, probe, {}, After::nothing);
  }
}

void Engine::request(const Operation& operation, Pe pe, const Request& request) {
  Peer& peer = this->peer(pe);
  wait(operation, pe, [&] {
    check_peer(peer, operation);
    if (try_request(peer, request)) return true;
    check_peer(peer, operation);
    return false;
  });
}

/// False: poll and try again, or the peer has failed.
bool Engine::try_request(Peer& peer, const Request& request) {
  if (peer.sent - peer.acknowledged >= peer.window) return false;
  const std::uint32_t sequence = peer.sent + 1;
  Expected& expected = peer.expected[sequence % peer.window];
  if (expected.waiting) return false;  // a reply that an acknowledgement has overtaken
  Message message = request.message;
  message.sequence = sequence;
  const bool on_its_way = !not_before(peer.acknowledged, peer.asked);
  const std::uint32_t unasked = sequence - (on_its_way ? peer.asked : peer.acknowledged);
  if ((request.ask == Ask::now && !on_its_way) || unasked >= (peer.window + 1) / 2)
    message.flags |= flag::acknowledge;
  const After after = peer.fenced ? After::writes : request.after;
  // Its acknowledgement may be that of earlier writes.
  const bool counted = request.counted || network_->needs_acknowledgement(peer);
  if (!network_->send(peer, message, request.payload, after)) return false;
  if (!peer.failure.empty()) return false;
  peer.sent = sequence;
  if (counted) peer.counted = sequence;
  count_in_flight(peer.sent - peer.acknowledged);
  const bool reply = has_reply(message.kind);
  if (reply) {
    expected = request.reply;
    expected.waiting = true;
    expected.sequence = sequence;
    ++peer.replies_awaited;
    if (expected.batch != nullptr) ++expected.batch->pending;
  }
  if (reply || (message.flags & flag::acknowledge) != 0) peer.asked = sequence;
  return true;
}

/// Sends a request that only asks for its acknowledgement.
bool Engine::try_ask(Peer& peer) {
  Request request;
  request.message.flags = flag::acknowledge;
  return try_request(peer, request);
}

void Engine::transfer(const Operation& operation, Pe pe, const Transfer& whole, Ask ask) {
  Peer& peer = this->peer(pe);
  const std::size_t length = network_->request_bytes(peer, whole);
  std::size_t started = 0;
  PolledOperations::Point point;
  wait(operation, pe, [&] {
    while (started != whole.bytes) {
      check_peer(peer, operation);
      if (whole.direction == Direction::write && peer.fenced) {
        if (!is_done(peer, point, peer.counted)) return false;
        peer.fenced = false;
      }
      if (peer.writes + peer.reads >= depth_) return false;
      Transfer request = whole;
      request.offset += started;
      request.local += started;
      request.bytes = std::min(length, whole.bytes - started);
      announce(peer);
      check_peer(peer, operation);
      if (!network_->transfer(peer, request)) {
        check_peer(peer, operation);
        return false;
      }
      count_in_flight(peer.writes + peer.reads);
      peer.unannounced += request.bytes;
      started += request.bytes;
    }
    if (ask == Ask::now && network_->needs_acknowledgement(peer) &&
        not_before(peer.acknowledged, peer.asked))
      try_ask(peer);  // where it fails, quiet asks
    return true;
  });
}

/// Sends a request without effect to a target of RMA requests that would otherwise sleep between
/// polls, since it does not notice what it serves.
void Engine::announce(Peer& peer) {
  if (!hides_rma_ || !peer.connected) return;
  if (peer.unannounced < kAnnouncementBytes) {
    if (peer.requests_before_look != 0) {
      --peer.requests_before_look;
      return;
    }
    peer.requests_before_look = kRequestsPerLook - 1;
    if (Clock::now() - peer.announced < kAnnouncementInterval) return;
  }
  try_request(peer, {.counted = false});  // where it fails, a later call tries again
}

/// The same for all targets of requests in flight.
void Engine::announce_all(Clock::time_point now) {
  if (now < next_announcement_) return;
  next_announcement_ = now + kAnnouncementInterval;
  for (Peer& peer : peers_)
    if (peer.connected && peer.failure.empty() && (peer.writes != 0 || peer.reads != 0) &&
        now - peer.announced >= kAnnouncementInterval)
      try_request(peer, {.counted = false});
}

void Engine::finish(const Operation& operation, Pe pe, Batch& batch) {
  const Peer& peer = this->peer(pe);
  wait(operation, pe, [&] {
    // A peer may leave in the poll that completes the last operation: that is no failure.
    if (batch.pending == 0 && !batch.failed) return true;
    check_peer(peer, operation);
    return false;
  });
}

void Engine::abandon(Batch& batch) noexcept {
  const std::lock_guard guard(lock_);
  if (batch.pending == 0) return;
  network_->abandon(batch);
  for (Peer& peer : peers_)
    for (Expected& expected : peer.expected)
      if (expected.batch == &batch) {
        expected.batch = nullptr;
        expected.target = nullptr;
      }
}

bool Engine::has_room(Pe pe) {
  const std::lock_guard guard(lock_);
  const Peer& peer = this->peer(pe);
  if (!peer.failure.empty()) return true;  // the operation throws
  return peer.sent - peer.acknowledged < peer.window &&
         !peer.expected[(peer.sent + 1) % peer.window].waiting && peer.writes + peer.reads < depth_;
}

bool Engine::reached(Pe pe, PolledOperations::Point& point) {
  const Clock::time_point now = Clock::now();
  if (now >= point.next_probe) {
    if (point.set) check_alive(pe);
    point.next_probe = now + kProbeInterval;
  }
  caller_polls_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard guard(lock_);
  poll(now);
  Peer& peer = this->peer(pe);
  // A peer may leave in the poll that completes the last operation: that is no failure.
  if (!peer.failure.empty() && !peer.lost && not_before(peer.acknowledged, peer.counted))
    return true;
  check_peer(peer, {"quiet"});
  return is_done(peer, point, peer.counted) && peer.reads == 0;
}

/// True if the requests up to `newest` and all that was written before the first call with this
/// point are complete at their target.
bool Engine::is_done(Peer& peer, PolledOperations::Point& point, std::uint32_t newest) {
  if (!point.set) {
    const bool asked = not_before(peer.acknowledged, newest) || not_before(peer.asked, newest);
    const bool asks = !asked || network_->needs_acknowledgement(peer);
    if (asks && !try_ask(peer)) return false;
    point.set = true;
    point.request = asks ? peer.sent : newest;
    point.transfer = network_->newest(peer);
  }
  const bool written = network_->is_complete(peer, point.transfer);
  if (!written || !not_before(peer.acknowledged, point.request)) return false;
  return peer.replies_awaited == 0 ||
         std::none_of(peer.expected.begin(), peer.expected.end(), [&](const Expected& expected) {
           return expected.waiting && not_before(point.request, expected.sequence);
         });
}

/// True if requests up to `newest`, or others, are in flight.
bool Engine::is_busy(const Peer& peer, std::uint32_t newest) const noexcept {
  return !not_before(peer.acknowledged, newest) || peer.replies_awaited != 0 || peer.writes != 0 ||
         peer.reads != 0 || network_->writing(peer);
}

void Engine::fence(Pe pe) {
  const std::lock_guard guard(lock_);
  Peer& peer = this->peer(pe);
  if (network_->writing(peer) || !not_before(peer.acknowledged, peer.counted)) peer.fenced = true;
}

std::vector<std::string> Engine::shortfalls(Pe pe, std::span<const Load> loads) {
  const std::lock_guard guard(lock_);
  return network_->shortfalls(peer(pe), loads);
}

/// Waits for the requests up to `newest(peer)`, and for all that was written.
template <typename Newest>
void Engine::complete(const Operation& operation, Newest&& newest) {
  // An allocation would take a tenth of the call.
  std::array<PolledOperations::Point, 8> few{};
  std::vector<PolledOperations::Point> many(peers_.size() <= few.size() ? 0 : peers_.size());
  PolledOperations::Point* const points = many.empty() ? few.data() : many.data();
  wait(operation, -1, [&] {
    bool all = true;
    for (Peer& peer : peers_) {
      PolledOperations::Point& point = points[static_cast<std::size_t>(peer.pe)];
      if (!peer.failure.empty() || !is_busy(peer, newest(peer))) continue;
      const bool done = is_done(peer, point, newest(peer));
      if (!done || peer.reads != 0) all = false;
    }
    return all;
  });
}

void Engine::quiet() {
  const Operation operation{"quiet"};
  complete(operation, [](const Peer& peer) { return peer.counted; });
  if (n_failed_.load(std::memory_order_acquire) == 0) return;
  // A lost peer is reported once, after the operations on the others are complete.
  Pe lost = -1;
  try {
    const std::lock_guard guard(lock_);
    for (Peer& peer : peers_) {
      if (!peer.lost) continue;
      peer.lost = false;
      lost = peer.pe;
      throw_lost(peer, operation);
    }
  } catch (const Error& error) {
    throw_with_cause(error, lost);
  }
}

void Engine::leave() noexcept {
  if (!network_->traits().says_goodbye) return;
  try {
    const ScopedTimeout limit(kLeaveTimeout);
    complete({"quiet"}, [](const Peer& peer) { return peer.sent; });
  } catch (const std::exception& error) {
    log::debug("PE {}: leaves with operations in flight: {}", my_pe_, error.what());
  }
  const std::lock_guard guard(lock_);
  Message goodbye;
  goodbye.kind = Kind::goodbye;
  for (Peer& peer : peers_)
    if (peer.connected && peer.failure.empty()) network_->send(peer, goodbye, {}, After::nothing);
}

void Engine::count_in_flight(std::uint32_t now) noexcept {
  if (now > most_in_flight_.load(std::memory_order_relaxed))
    most_in_flight_.store(now, std::memory_order_relaxed);
}

void Engine::fail_peer(Peer& peer, std::string reason, bool gone) {
  if (!peer.failure.empty()) return;
  peer.gone = gone;
  peer.lost = peer.connected && is_busy(peer);
  peer.failure = std::move(reason);
  peer.unsent.clear();
  peer.early.clear();
  peer.acknowledgement_due = false;
  for (Expected& expected : peer.expected) {
    if (expected.batch != nullptr) {
      --expected.batch->pending;
      expected.batch->failed = true;
    }
    expected = {};
  }
  peer.replies_awaited = 0;
  network_->drop(peer);
  log::debug("PE {}: transport {}: connection to PE {} lost: {}", my_pe_, network_->traits().name,
             peer.pe, peer.failure);
  if (!peer.connected) return;  // reach() has the reason
  failed_.push_back({peer.pe, fmt::format("its connection ({}) ended: {}", network_->traits().name,
                                          peer.failure)});
  n_failed_.store(failed_.size(), std::memory_order_release);
}

std::span<const Transport::Ended> Engine::ended() noexcept {
  if (n_failed_.load(std::memory_order_acquire) == ended_.size()) return ended_;
  const std::lock_guard guard(lock_);
  while (ended_.size() < failed_.size()) {
    ended_.push_back(failed_[ended_.size()]);  // room was reserved
    Transport::Ended& ended = ended_.back();
    ended.description += alternatives(peer(ended.pe));
  }
  return ended_;
}

void Engine::check_peer(const Peer& peer, const Operation& operation) const {
  if (!peer.failure.empty()) [[unlikely]]
    throw_lost(peer, operation);
}

std::string Engine::alternatives(const Peer& peer) const {
  return peer.gone || !alternatives_ ? "" : alternatives_(peer.pe);
}

void Engine::throw_lost(const Peer& peer, const Operation& operation) const {
  fail(Code::peer_failed, "SHOAL-N312: {} failed on PE {}: transport {} has lost PE {}: {}{}",
       describe(operation), my_pe_, network_->traits().name, peer.pe, peer.failure,
       alternatives(peer));
}

void Engine::throw_timeout(const Operation& operation, Pe pe, Clock::duration after) const {
  std::string state, others;
  for (const Peer& peer : peers_) {
    if (pe >= 0 ? peer.pe != pe : !is_busy(peer) || !peer.failure.empty()) continue;
    if (state.empty())
      others = alternatives(peer);
    else
      state += "; ";
    state +=
        fmt::format("to PE {} ({}) {} messages, {} writes and {} reads are in flight", peer.pe,
                    network_->route(peer), peer.sent - peer.acknowledged, peer.writes, peer.reads);
  }
  fail(Code::timeout,
       "SHOAL-N313: {} timed out after {} ms on PE {}: transport {}, {}: {}. Setting: "
       "SHOAL_TIMEOUT_MS{}",
       describe(operation), std::chrono::ceil<std::chrono::milliseconds>(after).count(), my_pe_,
       network_->traits().name, network_->description(), state, others);
}

}  // namespace shoal::transport::message
