// SPDX-License-Identifier: Apache-2.0
// backoff.hpp: what a polling thread does between two polls.
#pragma once

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/nap.hpp"

namespace shoal {

/// Yields the core; after kYieldTime without reset it sleeps instead, for kSleep where timers are
/// fast (nap.hpp). Naps::growing, for the wait of a caller: each sleep lasts a 64th of the time
/// since the yields, at most kLongestSleep. That ends a wait at most 1.6% later, and leaves the
/// cores to the PE that it waits for. Naps::even, for a thread that watches for what may come.
///
/// Yielding alone is not enough: on Linux 6.18, two threads that only yielded kept all others off
/// both cores of a machine until their deadlines 20 s later, including the threads that they waited
/// for. While it sleeps, the thread has a small timer slack: with the default of 50 us each sleep
/// would last ten times as long.
class Backoff {
 public:
  static constexpr std::chrono::microseconds kYieldTime{500};

  enum class Naps : std::uint8_t { even, growing };

  explicit Backoff(Naps naps = Naps::even) noexcept : naps_(naps) {}
  ~Backoff() { reset(); }
  Backoff(const Backoff&) = delete;
  Backoff& operator=(const Backoff&) = delete;

  void operator()() noexcept {
    if (slack_ >= 0) return nap(length());
    const Clock::time_point now = Clock::now();
    if (end_ == Clock::time_point{}) end_ = now + kYieldTime;
    if (now < end_) {
      sched_yield();
      return;
    }
    slack_ = prctl(PR_GET_TIMERSLACK);
    prctl(PR_SET_TIMERSLACK, kSlackNs);
  }
  /// Progress was made: yields again.
  void reset() noexcept {
    end_ = {};
    if (slack_ < 0) return;
    prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack_));
    slack_ = -1;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kSleep{5}, kLongestSleep{200};
  static constexpr int kPartOfTheWait = 64;
  static constexpr unsigned long kSlackNs = 1000;

  std::chrono::nanoseconds length() const noexcept {
    if (naps_ == Naps::even) return kSleep;
    return std::clamp<std::chrono::nanoseconds>((Clock::now() - end_) / kPartOfTheWait, kSleep,
                                                kLongestSleep);
  }

  Naps naps_;
  Clock::time_point end_{};
  int slack_ = -1;  ///< the thread's own timer slack while it is changed; -1: it is not
};

}  // namespace shoal
