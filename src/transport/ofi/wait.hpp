// SPDX-License-Identifier: Apache-2.0
// wait.hpp: how a call of the engine waits: it polls, so that it needs no other thread to go on.
#pragma once

#include <sched.h>

#include <mutex>

#include "base/backoff.hpp"
#include "base/deadline.hpp"
#include "transport/ofi/engine.hpp"
#include "transport/scoped_timeout.hpp"

namespace shoal::transport::ofi {

/// The clock of one wait.
class Engine::Waiting {
 public:
  explicit Waiting(const Engine& engine)
      : start_(Clock::now()),
        next_probe_(start_ + kPatience),
        deadline_(wait_deadline(engine.settings_.timeout), start_) {}

  /// It lasts so long that one asks whether the peer lives. True once in a while.
  bool suspicious() {
    if (Clock::now() < next_probe_) return false;
    next_probe_ = Clock::now() + kPatience;
    return true;
  }
  bool over() { return deadline_.passed(Clock::now()); }

 private:
  static constexpr std::chrono::milliseconds kPatience{20};

  Clock::time_point start_, next_probe_;
  Deadline deadline_;
};

/// Until `ready()`, which is called with the lock held and may throw. Throws Error{timeout}. `pe`:
/// who is waited for; negative: all.
template <typename Ready>
void Engine::wait(const char* operation, Pe pe, Ready&& ready) {
  {
    const std::lock_guard guard(lock_);
    if (ready()) return;
  }
  Waiting waiting(*this);
  Backoff backoff;
  for (;;) {
    bool progress = false;
    driven_.fetch_add(1, std::memory_order_relaxed);
    {
      const std::lock_guard guard(lock_);
      progress = poll();
      if (ready()) return;
      if (waiting.over()) time_out(operation, pe);
    }
    if (waiting.suspicious()) suspect(pe);
    if (progress) {
      backoff.reset();
    } else {
      backoff();
    }
  }
}

}  // namespace shoal::transport::ofi
