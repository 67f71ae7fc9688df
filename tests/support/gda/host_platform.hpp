// SPDX-License-Identifier: Apache-2.0
// host_platform.hpp: the Platform of shared queues (queue.hpp) for threads of a processor.
#pragma once

#include <atomic>
#include <thread>

#include "base/mlx5/host_bus.hpp"
#include "base/shared_words.hpp"

namespace shoal::device::gda {

struct HostPlatform : mlx5::HostBus {
  const std::atomic<bool>* abort = nullptr;

  std::uint64_t load(const std::uint64_t* word) const noexcept { return load_acquire(word); }
  std::uint64_t peek(const std::uint64_t* word) const noexcept { return load_relaxed(word); }
  void store(std::uint64_t* word, std::uint64_t value) const noexcept {
    store_release(word, value);
  }
  void store_ordered(std::uint64_t* word, std::uint64_t value) const noexcept {
    store_release(word, value);
  }
  bool try_lock(std::uint64_t* word) const noexcept {
    std::uint64_t free = 0;
    return std::atomic_ref(*word).compare_exchange_strong(free, 1, std::memory_order_acquire,
                                                          std::memory_order_relaxed);
  }
  std::uint64_t load_early(const std::uint64_t* word) const noexcept { return load_acquire(word); }
  bool try_lock_early(std::uint64_t* word) const noexcept { return try_lock(word); }
  std::uint64_t add(std::uint64_t* word, std::uint64_t value) const noexcept {
    return std::atomic_ref(*word).fetch_add(value, std::memory_order_relaxed);
  }
  bool replace(std::uint64_t* word, std::uint64_t& seen, std::uint64_t value) const noexcept {
    return std::atomic_ref(*word).compare_exchange_strong(seen, value, std::memory_order_acq_rel,
                                                          std::memory_order_acquire);
  }
  void raise(std::uint64_t* word, std::uint64_t value) const noexcept { raise_to(word, value); }
  /// On x86, the release store that follows is enough.
  void order_requests() const noexcept {
#if defined(__aarch64__)
    __asm__ volatile("dmb oshst" ::: "memory");
#endif
  }
  std::uint32_t load_cause(const std::uint32_t* word) const noexcept { return load_relaxed(word); }
  std::uint64_t now() const noexcept { return steady_ns(); }
  bool aborted() const noexcept {
    return abort != nullptr && abort->load(std::memory_order_relaxed);
  }
  void pause() const noexcept { std::this_thread::yield(); }
};

}  // namespace shoal::device::gda
