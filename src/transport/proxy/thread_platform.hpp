// SPDX-License-Identifier: Apache-2.0
// thread_platform.hpp: the Platform of rings whose producers are threads of this process, and the
// consumer's accesses to any ring.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "base/shared_words.hpp"

namespace shoal::transport::proxy {

struct ThreadPlatform {
  template <typename T>
  static T load_acquire_system(const T* word) noexcept {
    return load_acquire(word);
  }
  template <typename T>
  static T load_relaxed_system(const T* word) noexcept {
    return load_relaxed(word);
  }
  static void store_relaxed_system(std::uint64_t* word, std::uint64_t value) noexcept {
    std::atomic_ref(*word).store(value, std::memory_order_relaxed);
  }
  template <typename T>
  static void store_release_system(T* word, T value) noexcept {
    store_release(word, value);
  }

  // Words that only producers use.
  static std::uint64_t load_acquire_local(const std::uint64_t* word) noexcept {
    return load_acquire(word);
  }
  static bool compare_exchange_local(std::uint64_t* word, std::uint64_t expected,
                                     std::uint64_t desired) noexcept {
    return std::atomic_ref(*word).compare_exchange_strong(expected, desired,
                                                          std::memory_order_relaxed);
  }
  /// Raises the word to `value`, if it is lower.
  static void raise_local(std::uint64_t* word, std::uint64_t value) noexcept {
    raise_to(word, value);
  }

  static std::uint64_t clock_ns() noexcept { return steady_ns(); }
  /// Between two polls of a producer. Threads may outnumber cores.
  static void pause() noexcept {
    thread_local unsigned count = 0;
    if (++count % 16 == 0) sched_yield();
  }
};

}  // namespace shoal::transport::proxy
