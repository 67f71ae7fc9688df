// SPDX-License-Identifier: Apache-2.0
// deadline.hpp: when a wait that polls has lasted long enough.
#pragma once

#include <algorithm>
#include <chrono>

namespace shoal {

/// The end of a wait by a thread that looks again and again. Time in which the thread did not run
/// at all does not count: the machine was suspended, its virtual machine paused, the process
/// stopped in a debugger. What is waited for may have stood still as well, or may be there by now
/// unseen. At most as much again as the wait was to last, so that every wait ends.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Deadline(Clock::time_point end, Clock::time_point now = Clock::now()) noexcept
      : end_(end), last_(now), grace_(std::max(end - now, Clock::duration::zero())) {}

  /// To be called far more often than every kPause.
  bool passed(Clock::time_point now) noexcept {
    const Clock::duration gap = now - last_;
    last_ = now;
    if (gap > kPause) {
      const Clock::duration more = std::min(gap, grace_);
      end_ += more;
      grace_ -= more;
    }
    return now >= end_;
  }

  /// Longer than a thread waits for a core on a busy machine.
  static constexpr std::chrono::milliseconds kPause{500};

 private:
  Clock::time_point end_, last_;
  Clock::duration grace_;
};

}  // namespace shoal
