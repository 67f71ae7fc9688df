// SPDX-License-Identifier: Apache-2.0
// shared_words.hpp: access to counters that threads of a processor share, for the platforms of
// rings whose code also compiles for GPUs (transport/proxy/, shared send queues).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace shoal {

template <typename T>
T load_acquire(const T* word) noexcept {
  return std::atomic_ref(*const_cast<T*>(word)).load(std::memory_order_acquire);
}
template <typename T>
T load_relaxed(const T* word) noexcept {
  return std::atomic_ref(*const_cast<T*>(word)).load(std::memory_order_relaxed);
}
template <typename T>
void store_release(T* word, T value) noexcept {
  std::atomic_ref(*word).store(value, std::memory_order_release);
}

/// Stores `value` if it is larger than the word; acquire and release.
inline void raise_to(std::uint64_t* word, std::uint64_t value) noexcept {
  const std::atomic_ref atomic(*word);
  std::uint64_t seen = atomic.load(std::memory_order_acquire);
  while (seen < value && !atomic.compare_exchange_weak(seen, value, std::memory_order_acq_rel,
                                                       std::memory_order_acquire)) {
  }
}

/// Nanoseconds of the monotonic clock.
inline std::uint64_t steady_ns() noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

}  // namespace shoal
