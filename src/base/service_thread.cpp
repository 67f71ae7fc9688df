// SPDX-License-Identifier: Apache-2.0
#include "base/service_thread.hpp"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/backoff.hpp"
#include "base/log.hpp"
#include "base/nap.hpp"
#include "base/system_error.hpp"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

/// See ServiceThread.
constexpr std::chrono::nanoseconds kShortestNap{5'000}, kLongestNap{50'000};
constexpr int kNapShare = 1024;
/// Timer slack in ns. The kernel's default of 50 us would double the naps.
constexpr unsigned long kTimerSlackNs = 1'000;

/// Makes the thread wait for a free core when it wakes, rather than preempt a PE.
void schedule_as_batch() {
  const sched_param none{};
  pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
}

/// Binds a thread to a core. Returns 0 or an errno.
int bind_to_core(std::thread& thread, std::int64_t core) noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (core < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(core), &set);
  return pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);
}

}  // namespace

ServiceThread::ServiceThread(const Options& options, std::function<Polled()> poll,
                             std::function<void()> start)
    : poll_(std::move(poll)) {
  const SignalsBlocked blocked;
  thread_ = std::thread([this, wait = options.wait, start = std::move(start)] {
    if (start) start();
    run(wait);
  });
  pthread_setname_np(thread_.native_handle(), options.name.c_str());
  if (options.core < 0) return;
  if (const int error = bind_to_core(thread_, options.core); error != 0)
    log::warn("SHOAL-N105: PE {}: cannot bind the thread {} to core {}: {}. Setting: {}",
              options.pe, options.name, options.core, errno_text(error), options.core_setting);
}

ServiceThread::~ServiceThread() {
  stop_.store(true, std::memory_order_release);
  thread_.join();
}

void ServiceThread::run(ProgressWait wait) {
  if (wait != ProgressWait::spin) schedule_as_batch();
  prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  const std::chrono::nanoseconds yield_time =
      wait == ProgressWait::yield ? Backoff::kYieldTime : std::chrono::nanoseconds(0);
  Clock::time_point last{};  // of a result, or of the first poll without one since
  while (!stop_.load(std::memory_order_acquire)) {
    const Polled polled = poll_();
    if (polled == Polled::something) last = {};
    if (polled != Polled::nothing) continue;
    if (wait == ProgressWait::spin) {
      pause_core();
      continue;
    }
    const Clock::time_point now = Clock::now();
    if (last == Clock::time_point{}) last = now;
    if (const std::chrono::nanoseconds idle = now - last; idle < yield_time) {
      sched_yield();
    } else {
      nap(std::clamp(idle / kNapShare, kShortestNap, kLongestNap));
    }
  }
}

}  // namespace shoal
