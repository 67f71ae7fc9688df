// SPDX-License-Identifier: Apache-2.0
// host_bus.hpp: how processors order and store what a NIC reads (work_queue.hpp).
#pragma once

#include <atomic>
#include <cstdint>

namespace shoal::mlx5 {

struct HostBus {
  void store_record(std::uint32_t* word, std::uint32_t value) const noexcept {
#if defined(__aarch64__)
    __asm__ volatile("dmb oshst" ::: "memory");  // a release store orders processors alone
#endif
    std::atomic_ref(*word).store(value, std::memory_order_release);
  }
  /// Doorbell registers may be mapped as write-combining memory, which ordinary fences of x86 do
  /// not order.
  void order_record() const noexcept {
#if defined(__x86_64__)
    __asm__ volatile("sfence" ::: "memory");
#elif defined(__aarch64__)
    __asm__ volatile("dsb st" ::: "memory");
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  }
  void ring(std::uint64_t* doorbell, std::uint64_t value) const noexcept {
    std::atomic_ref(*doorbell).store(value, std::memory_order_release);
    order_record();  // flushes write-combining buffers
  }
  std::uint32_t load_entry(const std::uint32_t* word) const noexcept {
    const std::uint32_t value =
        std::atomic_ref(*const_cast<std::uint32_t*>(word)).load(std::memory_order_acquire);
#if defined(__aarch64__)
    __asm__ volatile("dmb oshld" ::: "memory");
#endif
    return value;
  }
};

}  // namespace shoal::mlx5
