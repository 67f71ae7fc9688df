// SPDX-License-Identifier: Apache-2.0
// lock.hpp: the lock of an Engine. Threads hold it for microseconds and may share a core.
#pragma once

#include <atomic>

#include "base/backoff.hpp"

namespace shoal::transport::message {

/// Spins briefly, then yields the core: the wake-up of a sleeping thread would take far longer than
/// the lock is held.
class Lock {
 public:
  bool try_lock() noexcept {
    return !held_.load(std::memory_order_relaxed) &&
           !held_.exchange(true, std::memory_order_acquire);
  }
  void lock() noexcept {
    if (try_lock()) return;
    waiting_.fetch_add(1, std::memory_order_relaxed);
    Backoff backoff;
    for (int tries = 0; !try_lock(); ++tries) {
      if (tries < kSpins) {
        pause_core();
      } else {
        backoff();
      }
    }
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  /// True if a thread holds the lock or waits for it. The progress thread, which only polls, then
  /// stays back: the lock is not fair.
  bool busy() const noexcept {
    return held_.load(std::memory_order_relaxed) || waiting_.load(std::memory_order_relaxed) != 0;
  }
  void unlock() noexcept { held_.store(false, std::memory_order_release); }

 private:
  static constexpr int kSpins = 50;  ///< attempts before a thread yields
  std::atomic<bool> held_{false};
  std::atomic<int> waiting_{0};
};

}  // namespace shoal::transport::message
