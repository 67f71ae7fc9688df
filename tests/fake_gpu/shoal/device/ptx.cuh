// SPDX-License-Identifier: Apache-2.0
// ptx.cuh: the instructions of include/shoal/device/ptx.cuh on the fake GPU.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "fake_gpu/fake_gpu.hpp"

namespace shoal::device::ptx {

template <typename T>
T ld_relaxed_sys(const T* at) {
  return __atomic_load_n(at, __ATOMIC_RELAXED);
}
template <typename T>
T ld_acquire_sys(const T* at) {
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}
template <typename T>
void st_relaxed_sys(T* at, T value) {
  __atomic_store_n(at, value, __ATOMIC_RELAXED);
}
inline ulonglong2 ld_relaxed_sys(const ulonglong2* at) {
  return {__atomic_load_n(&at->x, __ATOMIC_RELAXED), __atomic_load_n(&at->y, __ATOMIC_RELAXED)};
}
/// Whoever sees the higher word sees the lower one.
inline void ld_relaxed_sys_b128(const std::byte* at, std::uint64_t& low, std::uint64_t& high) {
  const auto* const words = reinterpret_cast<const std::uint64_t*>(at);
  high = __atomic_load_n(words + 1, __ATOMIC_ACQUIRE);
  low = __atomic_load_n(words, __ATOMIC_RELAXED);
}
inline void st_relaxed_sys_b128(std::byte* at, std::uint64_t low, std::uint64_t high) {
  auto* const words = reinterpret_cast<std::uint64_t*>(at);
  __atomic_store_n(words, low, __ATOMIC_RELAXED);
  __atomic_store_n(words + 1, high, __ATOMIC_RELEASE);
}
inline void st_release_sys(std::uint32_t* at, std::uint32_t value) {
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
}
inline void st_release_sys(std::uint64_t* at, std::uint64_t value) {
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
}
inline void fence_acq_rel_sys() {
  std::atomic_thread_fence(std::memory_order_acq_rel);
}
/// Code that polls reads it now and then: other PEs run meanwhile.
inline std::uint64_t globaltimer() {
  std::this_thread::yield();
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

}  // namespace shoal::device::ptx
