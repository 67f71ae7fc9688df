// SPDX-License-Identifier: Apache-2.0
// lock.hpp: the lock of the engine. It is held for microseconds, by threads that may share a core.
#pragma once

#include <atomic>

#include "base/backoff.hpp"

namespace shoal::transport::ofi {

inline void pause_core() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Spins a little, then yields its core: a thread that sleeps for it would wait for its wake-up far
/// longer than for the lock.
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
  /// Somebody has it or waits for it: whoever takes it again and again, just to look, lets them go
  /// first.
  bool busy() const noexcept {
    return held_.load(std::memory_order_relaxed) || waiting_.load(std::memory_order_relaxed) != 0;
  }
  void unlock() noexcept { held_.store(false, std::memory_order_release); }

 private:
  static constexpr int kSpins = 50;
  std::atomic<bool> held_{false};
  std::atomic<int> waiting_{0};
};

}  // namespace shoal::transport::ofi
