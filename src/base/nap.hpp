// SPDX-License-Identifier: Apache-2.0
// nap.hpp: the sleep of a thread between two polls.
#pragma once

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace shoal {

/// Average time that a nap of this process occupies its core. Concurrent naps may lose a sample.
inline std::atomic<std::chrono::nanoseconds::rep>& nap_cost() noexcept {
  static std::atomic<std::chrono::nanoseconds::rep> average{0};
  return average;
}

/// Sleeps at least `shortest`, and three times as long as a sleep occupies the core.
///
/// Setting a timer is expensive where a hypervisor emulates it, and occupies the core longer than a
/// short sleep. Such a sleep ends before the kernel has switched to another thread, so the sleeper
/// never gives its core to the thread that it waits for. On a machine with fast timers, naps last
/// `shortest`.
inline void nap(std::chrono::nanoseconds shortest) noexcept {
  using std::chrono::nanoseconds;
  constexpr nanoseconds::rep kShare = 3, kWeight = 8, kHighestCost = 100'000;
  const auto core_time = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return nanoseconds(std::chrono::seconds(time.tv_sec)).count() + time.tv_nsec;
  };
  const nanoseconds::rep cost = nap_cost().load(std::memory_order_relaxed);
  const nanoseconds::rep before = core_time();
  std::this_thread::sleep_for(std::max(shortest, nanoseconds(kShare * cost)));
  const nanoseconds::rep taken = std::min(core_time() - before, kHighestCost);
  nap_cost().store(cost + (taken - cost) / kWeight, std::memory_order_relaxed);
}

}  // namespace shoal
