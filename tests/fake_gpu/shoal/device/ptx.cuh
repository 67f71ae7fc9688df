// SPDX-License-Identifier: Apache-2.0
// ptx.cuh: the instructions of include/shoal/device/ptx.cuh on the fake GPU.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

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
inline void st_release_sys(std::uint32_t* at, std::uint32_t value) {
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
}
inline void st_release_sys(std::uint64_t* at, std::uint64_t value) {
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
}
inline void fence_acq_rel_sys() {
  std::atomic_thread_fence(std::memory_order_acq_rel);
}
inline std::uint64_t globaltimer() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

}  // namespace shoal::device::ptx
