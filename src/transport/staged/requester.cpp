// SPDX-License-Identifier: Apache-2.0
#include "transport/staged/requester.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/backoff.hpp"
#include "base/check.hpp"
#include "base/deadline.hpp"
#include "base/interrupt.hpp"
#include "transport/scoped_timeout.hpp"
#include "transport/words.hpp"

namespace shoal::transport::staged {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kPollsBetweenChecks = 64;

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
      sent_(static_cast<std::size_t>(context.n_pes)),
      uses_(layout.depth()) {}

std::uint64_t Requester::reply_word(Pe pe, std::size_t member) const noexcept {
  std::uint64_t word = 0;
  load_word<std::uint64_t>(&word, at(layout_.reply(pe)) + member);
  return word;
}

std::string Requester::reply_reason(Pe pe) const {
  Reply reply;
  std::memcpy(reply.reason, at(layout_.reply(pe)) + offsetof(Reply, reason), Reply::kReason);
  reply.reason[Reply::kReason - 1] = '\0';
  return reply.reason;
}

/// Calls `each` for every piece of `local` that fits into a chunk, with a request for its place in
/// the heap.
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
          request.data_in = DataIn::payload;
          copies_.to_chunk(request.payload, piece);
          return send(to, what, request);
        }
        const std::size_t chunk = take_chunk();
        request.data_in = DataIn::chunk;
        request.chunk = area_ + layout_.own_chunk(chunk);
        copies_.to_chunk(at(layout_.own_chunk(chunk)), piece);
        send(to, what, request);
        uses_[chunk] = {to, sent_[static_cast<std::size_t>(to)], {}};
      });
}

void Requester::finish(Pe pe) {
  const std::lock_guard guard(mutex_);
  await(pe, "operation", sent_[static_cast<std::size_t>(pe)]);
}

void Requester::start_get(Pe pe, std::size_t offset, const Elements& target, std::size_t stride) {
  const std::lock_guard guard(mutex_);
  cut(pe, "get", Kind::get, offset, target, stride,
      [&](Pe from, const char* what, Request& request, const Elements& piece) {
        const std::size_t chunk = take_chunk();
        request.chunk = area_ + layout_.own_chunk(chunk);
        send(from, what, request);
        uses_[chunk] = {from, sent_[static_cast<std::size_t>(from)], piece};
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
  send(pe, "atomic", request);
  await(pe, "atomic", sent_[static_cast<std::size_t>(pe)]);
  return reply_word(pe, offsetof(Reply, value));
}

void Requester::signal(Pe pe, std::size_t offset, SignalOp op, std::uint64_t value) {
  const std::lock_guard guard(mutex_);
  Request request{};
  request.kind = Kind::signal;
  request.op = static_cast<std::uint32_t>(op);
  request.offset = offset;
  request.operand = value;
  send(pe, "signal", request);
}

void Requester::quiet() {
  const std::lock_guard guard(mutex_);
  finish_gets();
  for (std::size_t pe = 0; pe < sent_.size(); ++pe)
    if (sent_[pe] > 0) await(static_cast<Pe>(pe), "quiet", sent_[pe]);
}

/// A chunk that no request uses any more. Takes them in turn, so that it waits for the request that
/// is in flight for longest.
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
  use = {};  // not where the wait throws: the other PE may still use the chunk
  if (ended.target.start != nullptr) copies_.from_chunk(ended.target, at(layout_.own_chunk(chunk)));
}

void Requester::finish_gets(Pe pe, std::uint64_t newest) {
  for (std::size_t i = 0; i < uses_.size(); ++i) {
    const std::size_t chunk = (next_chunk_ + i) % uses_.size();  // in the order of the requests
    Use& use = uses_[chunk];
    const bool meant = pe < 0 || (use.pe == pe && use.number <= newest);
    if (use.target.start != nullptr && meant) finish_chunk(use, chunk);
  }
}

void Requester::send(Pe pe, const char* what, Request request) {
  const std::uint64_t number = sent_[static_cast<std::size_t>(pe)] + 1;
  if (number > layout_.depth()) await(pe, what, number - layout_.depth());
  const std::size_t place = area_ + layout_.request(my_pe_, number);
  constexpr std::size_t kNumber = sizeof request.number;
  const bool in_payload = request.kind == Kind::put && request.data_in == DataIn::payload;
  const std::size_t bytes = offsetof(Request, payload) + (in_payload ? request.bytes : 0);
  host_route_(pe).put_signal(pe, place + kNumber, bytes_of(request) + kNumber, bytes - kNumber,
                             place, SignalOp::set, number);
  sent_[static_cast<std::size_t>(pe)] = number;
  const std::size_t in_flight = number - reply_word(pe, offsetof(Reply, completed));
  if (in_flight > most_in_flight()) most_in_flight_.store(in_flight, std::memory_order_relaxed);
}

/// Waits until request `number` to `pe` is complete. Throws Error{timeout}, Error{peer_failed}, and
/// Error{system} with the reason of the other PE where a request failed there.
void Requester::await(Pe pe, const char* what, std::uint64_t number) {
  const auto completed = [&] { return reply_word(pe, offsetof(Reply, completed)); };
  Transport& route = host_route_(pe);
  Deadline deadline(wait_deadline(timeout_));
  Backoff backoff;
  for (int polls = 1; completed() < number; ++polls) {
    if (route.progress()) backoff.reset();
    backoff();
    if (polls % kPollsBetweenChecks != 0) continue;
    throw_if_interrupted(what);
    check_alive(pe, what);
    require(
        !deadline.passed(Clock::now()), Code::timeout,
        "SHOAL-N362: {} timed out after {} ms on PE {}: transport staged: PE {} has completed {} "
        "of {} requests. Setting: SHOAL_TIMEOUT_MS",
        what, timeout_.count(), my_pe_, pe, completed(), sent_[static_cast<std::size_t>(pe)]);
  }
  check_reply(pe, what);
}

void Requester::check_alive(Pe pe, const char* what) const {
  const std::string failure = failure_ ? failure_(pe) : "";
  require(failure.empty(), Code::peer_failed,
          "SHOAL-N361: {} of PE {} on the heap of PE {} in GPU memory: {}", what, my_pe_, pe,
          failure);
}

void Requester::check_reply(Pe pe, const char* what) const {
  require(reply_word(pe, offsetof(Reply, failed)) == 0, Code::system,
          "SHOAL-N361: {} of PE {} on the heap of PE {} in GPU memory failed there: {}", what,
          my_pe_, pe, [&] { return reply_reason(pe); });
}

bool Requester::has_room(Pe pe) {
  const std::lock_guard guard(mutex_);
  if (sent_[static_cast<std::size_t>(pe)] - reply_word(pe, offsetof(Reply, completed)) >=
      layout_.depth())
    return false;
  const Use& next = uses_[next_chunk_];
  return next.pe < 0 || reply_word(next.pe, offsetof(Reply, completed)) >= next.number;
}

bool Requester::reached(Pe pe, PolledOperations::Point& point) {
  constexpr std::chrono::milliseconds kCheckInterval{1};
  const std::lock_guard guard(mutex_);
  if (!point.counted) {
    point.counted = true;
    point.number = sent_[static_cast<std::size_t>(pe)];
  }
  if (reply_word(pe, offsetof(Reply, completed)) >= point.number) {
    check_reply(pe, "operation");
    finish_gets(pe, point.number);
    return true;
  }
  host_route_(pe).progress();
  if (const Clock::time_point now = Clock::now(); now >= point.next_probe) {
    check_alive(pe, "operation");
    point.next_probe = now + kCheckInterval;
  }
  return false;
}

}  // namespace shoal::transport::staged
