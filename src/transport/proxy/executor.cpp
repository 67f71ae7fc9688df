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

/// Most requests taken per step, and started per queue and step: completions are served in between.
constexpr int kTakesPerStep = 64, kStartsPerStep = 32;
/// Length of the transfers that a long put or get is cut into; the room of the transport is checked
/// before each.
constexpr std::uint64_t kTransferBytes = std::uint64_t{1} << 20;
constexpr std::chrono::milliseconds kCheckInterval{5};

}  // namespace

Executor::Executor(const ProxyContext& context)
    : context_(context),
      ring_(context.ring),
      entries_(context.ring.n_slots),
      queues_(static_cast<std::size_t>(context.n_pes)) {
  for (std::size_t pe = 0; pe < queues_.size(); ++pe) queues_[pe].pe = static_cast<Pe>(pe);
}

bool Executor::step() noexcept {
  if (state() != State::running) return false;
  bool any = take();
  const Clock::time_point now = Clock::now();
  const bool health = now >= next_check_;
  if (health) next_check_ = now + kCheckInterval;
  for (std::size_t i = 0; i < active_.size() && state() == State::running;) {
    PeQueue& queue = queues_[static_cast<std::size_t>(active_[i])];
    any |= serve(queue);
    if (state() == State::running) check(queue, health);
    if (!queue.empty()) {
      ++i;
      continue;
    }
    queue.active = false;
    active_[i] = active_.back();
    active_.pop_back();
  }
  return free_slots() || any;
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
    return append(queues_[static_cast<std::size_t>(request.pe)], position);
  for (const Pe pe : active_) {
    queues_[static_cast<std::size_t>(pe)].waiting.push_back(position);
    ++taken.queues;
  }
  if (taken.queues == 0) complete(position);
}

void Executor::append(PeQueue& queue, std::uint64_t position) {
  if (!queue.active) {
    queue.active = true;
    active_.push_back(queue.pe);
    renew(queue);
  }
  queue.waiting.push_back(position);
}

/// Reports an error of the transport for the oldest request that can have caused it.
bool Executor::serve(PeQueue& queue) {
  std::uint64_t blamed = 0;
  try {
    bool any = false;
    if (!queue.started.empty()) {
      blamed = queue.started.front();
      any = finish_started(queue);
    }
    if (!queue.waiting.empty()) {
      blamed = queue.waiting.front();
      any |= start_waiting(queue);
    }
    if (any) renew(queue);
    return any;
  } catch (const Error& error) {
    if (!queue.waiting.empty()) blamed = std::min(blamed, queue.waiting.front());
    fail(error.code(), blamed, entry(blamed).request, std::string(error.reason()));
  } catch (const std::exception& error) {
    fail(Code::system, blamed, entry(blamed).request, error.what());
  }
  return true;
}

bool Executor::start_waiting(PeQueue& queue) {
  int started = 0;
  for (; started < kStartsPerStep && !queue.waiting.empty(); ++started) {
    const std::uint64_t position = queue.waiting.front();
    Entry& next = entry(position);
    if (next.request.kind == Kind::fence) {
      if (!queue.started.empty()) break;
      queue.waiting.pop_front();
      if (--next.queues == 0) complete(position);
      continue;
    }
    if (!start(queue, position)) break;
    queue.waiting.pop_front();
    queue.started.push_back(position);
  }
  return started != 0;
}

/// False: the transport has no room for the rest of the request.
bool Executor::start(PeQueue& queue, std::uint64_t position) {
  if (!queue.route) queue.route.emplace(context_.route(queue.pe));
  PolledOperations& operations = queue.route->operations;
  if (!operations.has_room(queue.pe)) return false;
  Entry& next = entry(position);
  const Request& request = next.request;
  const std::size_t offset = queue.route->start + request.offset;
  switch (request.kind) {
    case Kind::put:
    case Kind::get:
      if (!start_transfer(queue, next)) return false;
      break;
    case Kind::put_value:  // its slot is not reused before the request is finished
      operations.put_nbi(queue.pe, offset,
                         &ring_.slots[position % ring_.n_slots].words[device::proxy::kSourceWord],
                         request.width);
      break;
    case Kind::atomic:
      operations.atomic_nbi(queue.pe, request.op, offset, request.operand, request.compare,
                            request.width, &response(position).value);
      return true;
    case Kind::signal:
    case Kind::fence:
      break;
  }
  if ((request.flags & (kSignalSet | kSignalAdd)) != 0)
    operations.signal(queue.pe, queue.route->start + request.signal_offset,
                      (request.flags & kSignalSet) != 0 ? SignalOp::set : SignalOp::add,
                      request.signal_value);
  return true;
}

bool Executor::start_transfer(PeQueue& queue, Entry& entry) {
  const Request& request = entry.request;
  PolledOperations& operations = queue.route->operations;
  while (entry.started_bytes < request.bytes) {
    if (entry.started_bytes != 0 && !operations.has_room(queue.pe)) return false;
    const std::uint64_t now = std::min(kTransferBytes, request.bytes - entry.started_bytes);
    const std::size_t offset = queue.route->start + request.offset + entry.started_bytes;
    auto* const local = reinterpret_cast<std::byte*>(request.source) + entry.started_bytes;
    if (request.kind == Kind::put)
      operations.put_nbi(queue.pe, offset, local, now);
    else
      operations.get_nbi(local, queue.pe, offset, now);
    entry.started_bytes += now;
    renew(queue);
  }
  return true;
}

bool Executor::finish_started(PeQueue& queue) {
  if (!queue.point_set) {
    queue.point_set = true;
    queue.point = {};
    queue.covered = queue.started.back();
  }
  if (!queue.route->operations.reached(queue.pe, queue.point)) return false;
  queue.point_set = false;
  while (!queue.started.empty() && queue.started.front() <= queue.covered) {
    complete(queue.started.front());
    queue.started.pop_front();
  }
  return true;
}

void Executor::complete(std::uint64_t position) noexcept {
  entry(position).complete = true;
  ThreadPlatform::store_release_system(&response(position).done, position + 1);
}

/// Frees the slots of finished requests.
bool Executor::free_slots() noexcept {
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

void Executor::check(PeQueue& queue, bool health) {
  if (queue.empty()) return;
  const std::uint64_t position =
      queue.started.empty() ? queue.waiting.front() : queue.started.front();
  const Request& request = entry(position).request;
  if (health && context_.failure) {
    const std::string reason = context_.failure(queue.pe);
    if (!reason.empty())
      return fail(Code::peer_failed, position, request, fmt::format("PE {}: {}", queue.pe, reason));
  }
  if (queue.deadline.passed(Clock::now()))
    fail(Code::timeout, position, request,
         fmt::format(
             "SHOAL-N341: no progress for {} ms towards PE {}, {} requests started and {} waiting",
             context_.timeout.count(), queue.pe, queue.started.size(), queue.waiting.size()));
}

void Executor::fail(Code code, std::uint64_t position, const Request& request,
                    const std::string& reason) noexcept {
  const std::lock_guard guard(mutex_);
  if (failure_ || state() != State::running) return;
  failure_.emplace(code, fmt::format("SHOAL-N343: proxy of PE {}: request {}, {}: {}{}",
                                     context_.my_pe, position, describe(request), reason,
                                     code == Code::timeout ? "; Setting: SHOAL_TIMEOUT_MS." : ""));
  device::proxy::Control& control = *ring_.control;
  control.kind = request.kind;
  control.pe = request.pe;
  control.code = static_cast<std::int32_t>(code);
  control.position = position;
  control.offset = request.offset;
  control.bytes = moves_data(request.kind) ? request.bytes : request.width;
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
