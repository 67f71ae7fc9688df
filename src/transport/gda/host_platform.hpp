// SPDX-License-Identifier: Apache-2.0
// host_platform.hpp: shared queues (queue.hpp) for threads of a processor.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "base/mlx5/host_bus.hpp"

namespace shoal::transport::gda {

struct HostPlatform : mlx5::HostBus {
  const std::atomic<bool>* abort = nullptr;

  std::uint64_t load(const std::uint64_t* word) const noexcept {
    return std::atomic_ref(*const_cast<std::uint64_t*>(word)).load(std::memory_order_acquire);
  }
  void store(std::uint64_t* word, std::uint64_t value) const noexcept {
    std::atomic_ref(*word).store(value, std::memory_order_release);
  }
  std::uint64_t add(std::uint64_t* word, std::uint64_t value) const noexcept {
    return std::atomic_ref(*word).fetch_add(value, std::memory_order_relaxed);
  }
  bool replace(std::uint64_t* word, std::uint64_t& seen, std::uint64_t value) const noexcept {
    return std::atomic_ref(*word).compare_exchange_strong(seen, value, std::memory_order_acq_rel,
                                                          std::memory_order_acquire);
  }
  void raise(std::uint64_t* word, std::uint64_t value) const noexcept {
    std::uint64_t seen = load(word);
    while (seen < value && !replace(word, seen, value)) {
    }
  }
  /// The release store of `ready` orders them before the record of any thread that reads it.
  void order_requests() const noexcept {
#if defined(__aarch64__)
    __asm__ volatile("dmb oshst" ::: "memory");
#endif
  }
  std::uint32_t load_cause(const std::uint32_t* word) const noexcept {
    return std::atomic_ref(*const_cast<std::uint32_t*>(word)).load(std::memory_order_relaxed);
  }
  std::uint64_t now() const noexcept {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
  }
  bool aborted() const noexcept {
    return abort != nullptr && abort->load(std::memory_order_relaxed);
  }
  void pause() const noexcept { std::this_thread::yield(); }
};

/// One thread as a group (operations.hpp).
struct OneThread {
  std::uint32_t rank() const noexcept { return 0; }
  std::uint32_t size() const noexcept { return 1; }
  void sync() const noexcept {}
  std::uint64_t broadcast(std::uint64_t value) const noexcept { return value; }
  std::uint32_t count_before(bool flag, std::uint32_t& total) const noexcept {
    total = flag ? 1 : 0;
    return 0;
  }
};

}  // namespace shoal::transport::gda
