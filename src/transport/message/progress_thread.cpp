// SPDX-License-Identifier: Apache-2.0
#include "transport/message/progress_thread.hpp"

#include <algorithm>
#include <mutex>

#include "base/nap.hpp"

namespace shoal::transport::message {
namespace {

/// Rests of the thread while callers poll. A rest is about as long as they have polled so far: at
/// most kLongRest, or where timers are slow (nap.hpp), kRestShare times the cost of a nap up to
/// kSlowRest. While they continue, rests grow to kGrowth times as much, but not beyond a
/// kPolledShare-th of that time. A caller that has polled less than once in kPollPause computes
/// between its polls.
///
/// A nap on the core of a polling caller delays it by about twice its cost, and a round trip waits
/// for those of both PEs, so naps are rare in comparison with their cost.
constexpr std::chrono::nanoseconds kShortRest{20'000}, kLongRest{160'000}, kSlowRest{2'000'000},
    kPollPause{100'000};
constexpr int kRestShare = 160, kGrowth = 5, kPolledShare = 16;

/// `polled`: how long callers have polled without a pause of a whole rest.
std::chrono::nanoseconds longest_rest(std::chrono::nanoseconds polled) {
  const std::chrono::nanoseconds cost(nap_cost().load(std::memory_order_relaxed));
  const auto longest = std::clamp(kRestShare * cost, kLongRest, kSlowRest);
  return std::clamp(polled / kPolledShare, longest, kGrowth * longest);
}

}  // namespace

ProgressThread::ProgressThread(Engine& engine, const std::string& name, std::int64_t core)
    : engine_(engine),
      wait_(progress_wait_of(engine.settings().progress_wait)),
      caller_polls_(engine.caller_polls()),
      rest_(kShortRest),
      thread_({.pe = engine.my_pe(),
               .name = name,
               .wait = wait_,
               .core = core,
               .core_setting = "SHOAL_PROGRESS_CORE"},
              [this] { return poll(); }) {}

ServiceThread::Polled ProgressThread::poll() {
  using enum ServiceThread::Polled;
  if (wait_ != ProgressWait::spin && rest()) return waited;
  rest_ = kShortRest;
  polled_ = {};
  if (engine_.lock().busy() || !engine_.lock().try_lock()) return nothing;
  const std::lock_guard guard(engine_.lock(), std::adopt_lock);
  return engine_.poll() ? something : nothing;
}

/// A caller that polls, holds the lock or waits for it makes better use of the core.
bool ProgressThread::rest() {
  const std::uint32_t now = engine_.caller_polls();
  const bool busy = engine_.lock().busy();
  if (now == caller_polls_ && !busy) return false;
  const bool polls_on = busy || (now - caller_polls_) * kPollPause >= rest_;
  caller_polls_ = now;
  polled_ = polls_on ? polled_ + rest_ : std::chrono::nanoseconds{0};
  rest_ = polls_on ? std::min(2 * rest_, longest_rest(polled_)) : kShortRest;
  nap(rest_);
  return true;
}

}  // namespace shoal::transport::message
