// SPDX-License-Identifier: Apache-2.0
// proxy_platform.cuh: the Platform of rings whose producers are threads of a GPU.
#pragma once

#include <cstdint>

#include <shoal/device/ptx.cuh>

namespace shoal::device::detail {

struct GpuPlatform {
  template <typename T>
  __device__ static T load_acquire_system(const T* word) {
    return ptx::ld_acquire_sys(word);
  }
  __device__ static std::uint64_t load_relaxed_system(const std::uint64_t* word) {
    return ptx::ld_relaxed_sys(word);
  }
  __device__ static void store_relaxed_system(std::uint64_t* word, std::uint64_t value) {
    ptx::st_relaxed_sys(word, value);
  }
  __device__ static void store_release_system(std::uint64_t* word, std::uint64_t value) {
    ptx::st_release_sys(word, value);
  }

  // Words in this GPU's memory that only its kernels use.
  __device__ static std::uint64_t load_acquire_local(const std::uint64_t* word) {
    return ptx::ld_acquire_sys(word);
  }
  __device__ static bool compare_exchange_local(std::uint64_t* word, std::uint64_t expected,
                                                std::uint64_t desired) {
    return atomicCAS(reinterpret_cast<unsigned long long*>(word), expected, desired) == expected;
  }
  /// Raises the word to `value`, if it is lower; releases at the scope of the GPU.
  __device__ static void raise_local(std::uint64_t* word, std::uint64_t value) {
    __threadfence();
    atomicMax(reinterpret_cast<unsigned long long*>(word), value);
  }

  __device__ static std::uint64_t clock_ns() { return ptx::globaltimer(); }
  /// A poll of pinned memory takes about a microsecond by itself.
  __device__ static void pause() {}
};

}  // namespace shoal::device::detail
