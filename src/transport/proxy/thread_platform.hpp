// SPDX-License-Identifier: Apache-2.0
// thread_platform.hpp: the Platform of rings whose producers are threads of this process, and the
// consumer's accesses to any ring.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace shoal::transport::proxy {

struct ThreadPlatform {
  template <typename T>
  static T load_acquire_system(T* word) noexcept {
    return std::atomic_ref(*word).load(std::memory_order_acquire);
  }
  template <typename T>
  static T load_relaxed_system(T* word) noexcept {
    return std::atomic_ref(*word).load(std::memory_order_relaxed);
  }
  static void store_relaxed_system(std::uint64_t* word, std::uint64_t value) noexcept {
    std::atomic_ref(*word).store(value, std::memory_order_relaxed);
  }
  template <typename T>
  static void store_release_system(T* word, T value) noexcept {
    std::atomic_ref(*word).store(value, std::memory_order_release);
  }

  // Words that only producers use.
  static std::uint64_t load_acquire_local(std::uint64_t* word) noexcept {
    return load_acquire_system(word);
  }
  static bool compare_exchange_local(std::uint64_t* word, std::uint64_t expected,
                                     std::uint64_t desired) noexcept {
    return std::atomic_ref(*word).compare_exchange_strong(expected, desired,
                                                          std::memory_order_relaxed);
  }
  /// Raises the word to `value`, if it is lower.
  static void raise_local(std::uint64_t* word, std::uint64_t value) noexcept {
    const std::atomic_ref atomic(*word);
    std::uint64_t seen = atomic.load(std::memory_order_relaxed);
    while (seen < value && !atomic.compare_exchange_weak(seen, value, std::memory_order_release,
                                                         std::memory_order_relaxed)) {
    }
  }

  static std::uint64_t clock_ns() noexcept {
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }
  /// Between two polls of a producer. Threads may outnumber cores.
  static void pause() noexcept {
    thread_local unsigned count = 0;
    if (++count % 16 == 0) sched_yield();
  }
};

}  // namespace shoal::transport::proxy
