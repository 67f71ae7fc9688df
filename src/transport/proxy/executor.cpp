// SPDX-License-Identifier: Apache-2.0
#include "transport/proxy/executor.hpp"

#include <algorithm>
#include <atomic>

#include "base/check.hpp"
#include "transport/proxy/requests.hpp"
#include "transport/proxy/thread_platform.hpp"

namespace shoal::transport::proxy {

using device::proxy::Kind;
using device::proxy::kResult;
using device::proxy::kSignalAdd;
using device::proxy::kSignalSet;
using device::proxy::State;

namespace {

/// Requests taken per step, and started per lane and step, so that completions are not held up.
constexpr int kTakesPerStep = 64, kStartsPerStep = 32;
/// Length of the transfers that a long put is cut into; the room of the transport is checked before
/// each.
constexpr std::uint64_t kTransferBytes = std::uint64_t{1} << 20;
constexpr std::chrono::milliseconds kCheckInterval{5};

}  // namespace

Executor::Executor(const ProxyContext& context)
    : context_(context),
      ring_(context.ring),
      entries_(context.ring.n_slots),
      lanes_(static_cast<std::size_t>(context.n_pes)) {
  for (std::size_t pe = 0; pe < lanes_.size(); ++pe) lanes_[pe].pe = static_cast<Pe>(pe);
}

bool Executor::step() noexcept {
  if (state() != State::running) return false;
  bool any = take();
  const Clock::time_point now = Clock::now();
  const bool health = now >= next_check_;
  if (health) next_check_ = now + kCheckInterval;
  for (std::size_t i = 0; i < active_.size() && state() == State::running;) {
    Lane& lane = lanes_[static_cast<std::size_t>(active_[i])];
    any |= serve(lane);
    if (state() == State::running) check(lane, health);
    if (!lane.empty()) {
      ++i;
      continue;
    }
    lane.active = false;
    active_[i] = active_.back();
    active_.pop_back();
  }
  return publish() || any;
}

bool Executor::take() {
  int taken = 0;
  for (; taken < kTakesPerStep; ++taken) {
    const auto request = read_request(ring_, next_);
    if (!request) break;
    const std::uint64_t position = next_++;
    if (auto fault = fault_of(*request, context_.n_pes, context_.heap_bytes)) {
      fail(Code::invalid_argument, position, *request, *fault + "; nothing was done");
      break;
    }
    accept(position, *request);
  }
  return taken != 0;
}

void Executor::accept(std::uint64_t position, const Request& request) {
  Entry& taken = entry(position);
  taken = Entry{.request = request};
  if (request.kind != Kind::fence)
    return append(lanes_[static_cast<std::size_t>(request.pe)], position);
  for (const Pe pe : active_) {
    lanes_[static_cast<std::size_t>(pe)].waiting.push_back(position);
    ++taken.lanes;
  }
  if (taken.lanes == 0) complete(position);
}

void Executor::append(Lane& lane, std::uint64_t position) {
  if (!lane.active) {
    lane.active = true;
    active_.push_back(lane.pe);
    renew(lane);
  }
  lane.waiting.push_back(position);
}

/// Errors of the transport belong to the oldest request of the lane that they can stem from.
bool Executor::serve(Lane& lane) {
  std::uint64_t blamed = 0;
  try {
    bool any = false;
    if (!lane.started.empty()) {
      blamed = lane.started.front();
      any = finish_started(lane);
    }
    if (!lane.waiting.empty()) {
      blamed = lane.waiting.front();
      any |= start_waiting(lane);
    }
    if (any) renew(lane);
    return any;
  } catch (const Error& error) {
    if (!lane.waiting.empty()) blamed = std::min(blamed, lane.waiting.front());
    fail(error.code(), blamed, entry(blamed).request, std::string(error.reason()));
  } catch (const std::exception& error) {
    fail(Code::system, blamed, entry(blamed).request, error.what());
  }
  return true;
}

bool Executor::start_waiting(Lane& lane) {
  int started = 0;
  for (; started < kStartsPerStep && !lane.waiting.empty(); ++started) {
    const std::uint64_t position = lane.waiting.front();
    Entry& next = entry(position);
    if (next.request.kind == Kind::fence) {
      if (!lane.started.empty()) break;
      lane.waiting.pop_front();
      if (--next.lanes == 0) complete(position);
      continue;
    }
    if (!start(lane, position)) break;
    lane.waiting.pop_front();
    lane.started.push_back(position);
  }
  return started != 0;
}

/// False: the transport has no room for the rest of the request.
bool Executor::start(Lane& lane, std::uint64_t position) {
  if (!lane.route) lane.route.emplace(context_.route(lane.pe));
  Transport& transport = lane.route->transport;
  if (!transport.has_room(lane.pe)) return false;
  Entry& next = entry(position);
  const Request& request = next.request;
  const std::size_t offset = lane.route->start + request.offset;
  switch (request.kind) {
    case Kind::put:
      if (!start_put(lane, next)) return false;
      break;
    case Kind::put_value:  // its slot is not reused before the request is finished
      transport.put_nbi(lane.pe, offset,
                        &ring_.slots[position % ring_.n_slots].words[device::proxy::kSourceWord],
                        request.width);
      break;
    case Kind::atomic:
      transport.atomic_nbi(lane.pe, request.op, offset, request.operand, request.compare,
                           request.width, &response(position).value);
      return true;
    case Kind::signal:
    case Kind::fence:
      break;
  }
  if ((request.flags & (kSignalSet | kSignalAdd)) != 0)
    transport.signal(lane.pe, lane.route->start + request.signal_offset,
                     (request.flags & kSignalSet) != 0 ? SignalOp::set : SignalOp::add,
                     request.signal_value);
  return true;
}

bool Executor::start_put(Lane& lane, Entry& entry) {
  const Request& request = entry.request;
  Transport& transport = lane.route->transport;
  while (entry.started_bytes < request.bytes) {
    if (entry.started_bytes != 0 && !transport.has_room(lane.pe)) return false;
    const std::uint64_t now = std::min(kTransferBytes, request.bytes - entry.started_bytes);
    transport.put_nbi(lane.pe, lane.route->start + request.offset + entry.started_bytes,
                      reinterpret_cast<const std::byte*>(request.source) + entry.started_bytes,
                      now);
    entry.started_bytes += now;
    renew(lane);
  }
  return true;
}

bool Executor::finish_started(Lane& lane) {
  if (!lane.pointed) {
    lane.pointed = true;
    lane.point = {};
    lane.covered = lane.started.back();
  }
  if (!lane.route->transport.reached(lane.pe, lane.point)) return false;
  lane.pointed = false;
  while (!lane.started.empty() && lane.started.front() <= lane.covered) {
    complete(lane.started.front());
    lane.started.pop_front();
  }
  return true;
}

void Executor::complete(std::uint64_t position) noexcept {
  entry(position).complete = true;
  ThreadPlatform::store_release_system(&response(position).done, position + 1);
}

/// Frees the slots of finished requests.
bool Executor::publish() noexcept {
  const std::uint64_t before = completed_;
  while (completed_ != next_) {
    const Entry& oldest = entry(completed_);
    if (!oldest.complete) break;
    if ((oldest.request.flags & kResult) != 0 &&
        ThreadPlatform::load_acquire_system(&response(completed_).taken) <= completed_)
      break;
    ++completed_;
  }
  if (completed_ == before) return false;
  ThreadPlatform::store_release_system(&ring_.control->completed, completed_);
  return true;
}

void Executor::check(Lane& lane, bool health) {
  if (lane.empty()) return;
  const std::uint64_t position = lane.started.empty() ? lane.waiting.front() : lane.started.front();
  const Request& request = entry(position).request;
  if (health && context_.failure) {
    const std::string reason = context_.failure(lane.pe);
    if (!reason.empty())
      return fail(Code::peer_failed, position, request, fmt::format("PE {}: {}", lane.pe, reason));
  }
  if (lane.deadline.passed(Clock::now()))
    fail(Code::timeout, position, request,
         fmt::format("no progress for {} ms towards PE {}, {} requests started and {} waiting",
                     context_.timeout.count(), lane.pe, lane.started.size(), lane.waiting.size()));
}

void Executor::fail(Code code, std::uint64_t position, const Request& request,
                    const std::string& reason) noexcept {
  const std::lock_guard guard(mutex_);
  if (failure_ || state() != State::running) return;
  failure_.emplace(code, fmt::format("proxy of PE {}: request {}, {}: {}{}", context_.my_pe,
                                     position, describe(request), reason,
                                     code == Code::timeout ? "; Setting: SHOAL_TIMEOUT_MS." : ""));
  device::proxy::Control& control = *ring_.control;
  control.kind = request.kind;
  control.pe = request.pe;
  control.code = static_cast<std::int32_t>(code);
  control.position = position;
  control.offset = request.offset;
  control.bytes = request.kind == Kind::put ? request.bytes : request.width;
  std::atomic_ref(control.state).store(State::failed, std::memory_order_release);
}

void Executor::abort() noexcept {
  const std::lock_guard guard(mutex_);
  if (state() == State::running)
    std::atomic_ref(ring_.control->state).store(State::aborted, std::memory_order_release);
}

std::optional<Error> Executor::failure() const {
  const std::lock_guard guard(mutex_);
  return failure_;
}

State Executor::state() const noexcept {
  return std::atomic_ref(ring_.control->state).load(std::memory_order_acquire);
}

std::uint64_t Executor::completed() const noexcept {
  return ThreadPlatform::load_acquire_system(&ring_.control->completed);
}

}  // namespace shoal::transport::proxy
