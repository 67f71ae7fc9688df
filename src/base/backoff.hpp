// SPDX-License-Identifier: Apache-2.0
// backoff.hpp: what a thread does between two looks at something that another thread or PE has to
// bring about.
#pragma once

#include <sched.h>
#include <sys/prctl.h>

#include <chrono>
#include <thread>

namespace shoal {

/// Yields the core; when nothing has come for kPatience it sleeps for moments instead. Yielding
/// alone is not enough: on Linux 6.18 two threads that waited and did nothing but yield were seen
/// to keep all others from both cores of a machine, those included that they waited for, until
/// their deadlines 20 s later. While it sleeps, the thread's timer slack is small: with the usual
/// 50 us the moments would last ten times as long.
class Backoff {
 public:
  Backoff() = default;
  ~Backoff() { reset(); }
  Backoff(const Backoff&) = delete;
  Backoff& operator=(const Backoff&) = delete;

  void operator()() noexcept {
    if (slack_ >= 0) return std::this_thread::sleep_for(kSleep);
    const Clock::time_point now = Clock::now();
    if (end_ == Clock::time_point{}) end_ = now + kPatience;
    if (now < end_) {
      sched_yield();
      return;
    }
    slack_ = prctl(PR_GET_TIMERSLACK);
    prctl(PR_SET_TIMERSLACK, kSlackNs);
  }
  /// Something came: patience begins anew.
  void reset() noexcept {
    end_ = {};
    if (slack_ < 0) return;
    prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack_));
    slack_ = -1;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kPatience{500}, kSleep{5};
  static constexpr unsigned long kSlackNs = 1000;
  Clock::time_point end_{};
  int slack_ = -1;  ///< of the thread outside, while it is changed
};

}  // namespace shoal
