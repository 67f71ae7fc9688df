// SPDX-License-Identifier: Apache-2.0
// backoff.hpp: what a polling thread does between two polls.
#pragma once

#include <sched.h>
#include <sys/prctl.h>

#include <chrono>

#include "base/nap.hpp"

namespace shoal {

/// Tells the core that this is a loop of polls.
inline void pause_core() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Yields the core; after kYieldTime without reset it sleeps instead, for kSleep where timers are
/// fast (nap.hpp).
///
/// Yielding alone is not enough: on Linux 6.18, two threads that only yielded kept all others off
/// both cores of a machine until their deadlines 20 s later, including the threads that they waited
/// for. While it sleeps, the thread has a small timer slack: with the default of 50 us each sleep
/// would last much longer.
class Backoff {
 public:
  static constexpr std::chrono::microseconds kYieldTime{500};

  Backoff() = default;
  ~Backoff() { reset(); }
  Backoff(const Backoff&) = delete;
  Backoff& operator=(const Backoff&) = delete;

  void operator()() noexcept {
    if (slack_ >= 0) return nap(kSleep);
    const Clock::time_point now = Clock::now();
    if (end_ == Clock::time_point{}) end_ = now + kYieldTime;
    if (now < end_) {
      sched_yield();
      return;
    }
    slack_ = prctl(PR_GET_TIMERSLACK);
    prctl(PR_SET_TIMERSLACK, kSlackNs);
  }
  /// True if the next call sleeps. A loop that calls it between several polls then polls only once
  /// between two calls.
  bool sleeps() const noexcept { return slack_ >= 0; }
  /// Progress was made: yields again.
  void reset() noexcept {
    end_ = {};
    if (slack_ < 0) return;
    prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack_));
    slack_ = -1;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kSleep{5};
  static constexpr unsigned long kSlackNs = 1000;
  Clock::time_point end_{};
  int slack_ = -1;  ///< the thread's own timer slack while it is changed; -1: it is not
};

}  // namespace shoal
