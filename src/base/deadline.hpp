// SPDX-License-Identifier: Apache-2.0
// deadline.hpp: the end of a wait that polls.
#pragma once

#include <algorithm>
#include <chrono>

namespace shoal {

/// The end of a wait by a thread that polls.
///
/// Time in which the thread did not run does not count: the machine was suspended, its virtual
/// machine paused, or the process stopped in a debugger. What the thread waits for may have been
/// stopped too, or may have happened unseen. The extension is at most the original duration, so
/// that every wait ends.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Deadline(Clock::time_point end, Clock::time_point now = Clock::now()) noexcept
      : end_(end), last_(now), grace_(std::max(end - now, Clock::duration::zero())) {}

  /// True if the deadline has passed at `now`. Call it far more often than every kPause.
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

  /// A longer gap between two calls means that the thread did not run: it exceeds the time that a
  /// thread waits for a core on a busy machine.
  static constexpr std::chrono::milliseconds kPause{500};

 private:
  Clock::time_point end_, last_;
  Clock::duration grace_;
};

}  // namespace shoal
