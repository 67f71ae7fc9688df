// SPDX-License-Identifier: Apache-2.0
#include "transport/message/progress_thread.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <mutex>

#include "base/backoff.hpp"
#include "base/log.hpp"
#include "base/nap.hpp"
#include "base/system_error.hpp"

namespace shoal::transport::message {
namespace {

constexpr int kPollsBeforeSleep = 64;
constexpr std::chrono::nanoseconds kSleepStep{1'000}, kLongestSleep{50'000};
/// While callers poll. A rest is about as long as they have polled so far: at most kLongRest, or
/// where timers are slow (nap.hpp), kRestShare times the cost of a nap up to kSlowRest. While they
/// go on, rests grow to kGrowth times as much, but not beyond a kPolledShare-th of that time. A
/// caller that has polled less than once in kPollPause computes between its polls.
///
/// A nap on the core of a polling caller delays it by about twice its cost, and a round trip waits
/// for those of both PEs: naps of 12 us every 500 us made an atomic over TCP 6 % longer.
constexpr std::chrono::nanoseconds kShortRest{20'000}, kLongRest{160'000}, kSlowRest{2'000'000},
    kPollPause{100'000};
constexpr int kRestShare = 160, kGrowth = 5, kPolledShare = 16;
/// The default of 50 us would double the sleeps.
constexpr unsigned long kTimerSlackNs = 1'000;

/// `polled`: how long callers have polled without a pause of a whole rest.
std::chrono::nanoseconds longest_rest(std::chrono::nanoseconds polled) {
  const std::chrono::nanoseconds cost(nap_cost().load(std::memory_order_relaxed));
  const auto longest = std::clamp(kRestShare * cost, kLongRest, kSlowRest);
  return std::clamp(polled / kPolledShare, longest, kGrowth * longest);
}

/// Makes the thread wait for a free core when it wakes, rather than preempt a PE.
void schedule_as_batch() {
  const sched_param none{};
  pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
}

}  // namespace

ProgressThread::ProgressThread(Engine& engine, const std::string& name, std::int64_t core)
    : engine_(engine), wait_(progress_wait_of(engine.settings().progress_wait)) {
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), name.c_str());
  if (core >= 0) bind(core);
}

ProgressThread::~ProgressThread() {
  stop_.store(true, std::memory_order_release);
  thread_.join();
}

void ProgressThread::bind(std::int64_t core) {
  const int error = bind_to_core(thread_, core);
  if (error != 0)
    log::warn("PE {}: cannot bind the progress thread to core {}: {}. Setting: SHOAL_PROGRESS_CORE",
              engine_.my_pe(), core, errno_text(error));
}

void ProgressThread::run() {
  if (wait_ != ProgressWait::spin) schedule_as_batch();
  prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  std::chrono::nanoseconds rest = kShortRest, polled{0};
  std::uint32_t caller_polls = engine_.caller_polls();
  Backoff backoff;
  for (int idle = 0; !stop_.load(std::memory_order_acquire);) {
    // A caller that polls, holds the lock or waits for it makes better use of the core.
    if (const std::uint32_t now = engine_.caller_polls();
        wait_ != ProgressWait::spin && (now != caller_polls || engine_.lock().busy())) {
      const bool polls_on = (now - caller_polls) * kPollPause >= rest || engine_.lock().busy();
      caller_polls = now;
      polled = polls_on ? polled + rest : std::chrono::nanoseconds{0};
      rest = polls_on ? std::min(2 * rest, longest_rest(polled)) : kShortRest;
      nap(rest);
      continue;
    }
    rest = kShortRest;
    polled = {};
    if (engine_.lock().busy()) {
      pause_core();
      continue;
    }
    bool any = false;
    if (engine_.lock().try_lock()) {
      const std::lock_guard guard(engine_.lock(), std::adopt_lock);
      any = engine_.poll();
    }
    idle = any ? 0 : idle + 1;
    if (any) {
      backoff.reset();
    } else if (wait_ == ProgressWait::spin) {
      pause_core();
    } else if (wait_ == ProgressWait::yield || idle < kPollsBeforeSleep) {
      backoff();
    } else {
      nap(std::min(kLongestSleep, kSleepStep * (idle - kPollsBeforeSleep)));
    }
  }
}

}  // namespace shoal::transport::message
