// SPDX-License-Identifier: Apache-2.0
#include "transport/staged/requester.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/backoff.hpp"
#include "base/check.hpp"
#include "base/deadline.hpp"
#include "transport/scoped_timeout.hpp"

namespace shoal::transport::staged {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kPollsBetweenChecks = 64;

std::uint64_t load(const std::uint64_t& word) {
  return std::atomic_ref(const_cast<std::uint64_t&>(word)).load(std::memory_order_acquire);
}

}  // namespace

Requester::Requester(const Context& context, const Layout& layout, Copies& copies)
    : layout_(layout),
      copies_(copies),
      segment_(context.segment),
      area_(context.staging),
      my_pe_(context.my_pe),
      timeout_(context.settings->timeout),
      host_route_(context.host_route),
      failure_(context.failure),
      asked_(static_cast<std::size_t>(context.n_pes)),
      uses_(layout.depth()) {}

const Reply& Requester::reply(Pe pe) const noexcept {
  return *reinterpret_cast<const Reply*>(at(layout_.reply(pe)));
}

/// Calls `each` for every piece of `local` that one chunk holds, with a request that says where it
/// lies in the heap.
template <typename Each>
void Requester::cut(Pe pe, const char* what, Kind kind, std::size_t offset, const Elements& local,
                    std::size_t stride, Each&& each) {
  const std::size_t room = layout_.chunk_bytes();
  const bool whole = local.pitch == local.element && stride == local.element;
  const std::size_t run = whole ? local.element * local.count : local.element;
  if (run == 0) return;
  Request request{};
  if (!whole && local.element <= room) {
    request.kind = kind == Kind::put ? Kind::put_strided : Kind::get_strided;
    request.bytes = local.element;
    request.stride = stride;
    for (std::size_t i = 0; i < local.count; i += request.count) {
      request.count = std::min(room / local.element, local.count - i);
      request.offset = offset + i * stride;
      each(pe, what, request,
           Elements{local.start + i * local.pitch, local.element, request.count, local.pitch});
    }
    return;
  }
  request.kind = kind;
  for (std::size_t i = 0; i < (whole ? 1 : local.count); ++i)
    for (std::size_t done = 0; done < run; done += request.bytes) {
      request.bytes = std::min(room, run - done);
      request.offset = offset + i * stride + done;
      each(pe, what, request,
           Elements{local.start + i * local.pitch + done, request.bytes, 1, request.bytes});
    }
}

void Requester::put(Pe pe, std::size_t offset, const Elements& source, std::size_t stride) {
  const std::lock_guard guard(mutex_);
  cut(pe, "put", Kind::put, offset, source, stride,
      [&](Pe to, const char* what, Request& request, const Elements& piece) {
        if (request.kind == Kind::put && request.bytes <= Request::kPayload) {
          request.in_payload = 1;
          copies_.to_chunk(request.payload, piece);
          return ask(to, what, request);
        }
        const std::size_t chunk = take_chunk();
        request.in_payload = 0;
        request.chunk = area_ + layout_.own_chunk(chunk);
        copies_.to_chunk(at(layout_.own_chunk(chunk)), piece);
        ask(to, what, request);
        uses_[chunk] = {to, asked_[static_cast<std::size_t>(to)], {}};
      });
}

void Requester::finish(Pe pe) {
  const std::lock_guard guard(mutex_);
  await(pe, "operation", asked_[static_cast<std::size_t>(pe)]);
}

void Requester::start_get(Pe pe, std::size_t offset, const Elements& target, std::size_t stride) {
  const std::lock_guard guard(mutex_);
  cut(pe, "get", Kind::get, offset, target, stride,
      [&](Pe from, const char* what, Request& request, const Elements& piece) {
        const std::size_t chunk = take_chunk();
        request.chunk = area_ + layout_.own_chunk(chunk);
        ask(from, what, request);
        uses_[chunk] = {from, asked_[static_cast<std::size_t>(from)], piece};
      });
}

void Requester::get(Pe pe, std::size_t offset, const Elements& target, std::size_t stride) {
  start_get(pe, offset, target, stride);
  const std::lock_guard guard(mutex_);
  finish_gets();
}

std::uint64_t Requester::atomic(Pe pe, AtomicOp op, std::size_t offset, std::uint64_t operand,
                                std::uint64_t compare, std::size_t width) {
  const std::lock_guard guard(mutex_);
  Request request{};
  request.kind = Kind::atomic;
  request.op = static_cast<std::uint32_t>(op);
  request.width = static_cast<std::uint32_t>(width);
  request.offset = offset;
  request.operand = operand;
  request.compare = compare;
  ask(pe, "atomic", request);
  await(pe, "atomic", asked_[static_cast<std::size_t>(pe)]);
  return load(reply(pe).value);
}

void Requester::signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) {
  const std::lock_guard guard(mutex_);
  Request request{};
  request.kind = Kind::signal;
  request.op = static_cast<std::uint32_t>(op);
  request.offset = offset;
  request.operand = value;
  ask(pe, "signal", request);
}

void Requester::quiet() {
  const std::lock_guard guard(mutex_);
  finish_gets();
  for (std::size_t pe = 0; pe < asked_.size(); ++pe)
    if (asked_[pe] > 0) await(static_cast<Pe>(pe), "quiet", asked_[pe]);
}

/// A chunk that no request uses any more, in turn, so that the one which has been in use for
/// longest is waited for.
std::size_t Requester::take_chunk() {
  const std::size_t chunk = next_chunk_;
  next_chunk_ = (next_chunk_ + 1) % uses_.size();
  finish_chunk(uses_[chunk], chunk);
  return chunk;
}

void Requester::finish_chunk(Use& use, std::size_t chunk) {
  if (use.pe < 0) return;
  const Use ended = use;
  await(ended.pe, ended.target.start == nullptr ? "put" : "get", ended.number);
  use = {};  // where the wait failed, the other PE may still use the chunk
  if (ended.target.start != nullptr) copies_.from_chunk(ended.target, at(layout_.own_chunk(chunk)));
}

void Requester::finish_gets() {
  for (std::size_t i = 0; i < uses_.size(); ++i) {
    const std::size_t chunk =
        (next_chunk_ + i) % uses_.size();  // in the order in which they were asked for
    if (uses_[chunk].target.start != nullptr) finish_chunk(uses_[chunk], chunk);
  }
}

void Requester::ask(Pe pe, const char* what, Request request) {
  const std::uint64_t number = asked_[static_cast<std::size_t>(pe)] + 1;
  if (number > layout_.depth()) await(pe, what, number - layout_.depth());
  const std::size_t place = area_ + layout_.request(my_pe_, number);
  constexpr std::size_t kBehindNumber = sizeof request.number;
  const std::size_t bytes = request.kind == Kind::put && request.in_payload != 0
                                ? offsetof(Request, payload) + request.bytes
                                : offsetof(Request, payload);
  host_route_(pe).put_signal(pe, place + kBehindNumber,
                             reinterpret_cast<std::byte*>(&request) + kBehindNumber,
                             bytes - kBehindNumber, place, SignalOp::set, number);
  asked_[static_cast<std::size_t>(pe)] = number;
}

/// Until request `number` of `pe` is done. Throws Error{timeout, peer_failed}, and what the other
/// PE says of a request that it could not carry out.
void Requester::await(Pe pe, const char* what, std::uint64_t number) {
  const Reply& answer = reply(pe);
  Transport& route = host_route_(pe);
  Deadline deadline(wait_deadline(timeout_));
  Backoff backoff;
  for (int polls = 1; load(answer.completed) < number; ++polls) {
    if (route.progress()) backoff.reset();
    backoff();
    if (polls % kPollsBetweenChecks != 0) continue;
    const std::string failure = failure_ ? failure_(pe) : "";
    require(failure.empty(), Code::peer_failed,
            "{} of PE {} on the heap of PE {} in GPU memory: {}", what, my_pe_, pe, failure);
    require(
        !deadline.passed(Clock::now()), Code::timeout,
        "{} timed out after {} ms on PE {}: transport staged: PE {} has done {} of the {} requests. Setting: "
        "SHOAL_TIMEOUT_MS",
        what, timeout_.count(), my_pe_, pe, load(answer.completed),
        asked_[static_cast<std::size_t>(pe)]);
  }
  require(load(answer.failed) == 0, Code::system,
          "{} of PE {} on the heap of PE {} in GPU memory failed there: {}", what, my_pe_, pe,
          answer.reason);
}

}  // namespace shoal::transport::staged
