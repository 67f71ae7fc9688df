// SPDX-License-Identifier: Apache-2.0
// cuda_platform.cuh: a warp as the dispatcher or as a worker of the NIC.
//
// What the dispatcher and the workers share is in this GPU's memory: scope gpu. What clients, hosts
// and other GPUs access has scope sys.
#pragma once

#include "gpu/bits.hpp"
#include "gpu/ptx.cuh"
#include "shoal/device/ptx.cuh"

#ifdef __CUDACC__

namespace shoal::emulator::gpu {

/// All lanes of the warp call each function. The barrier in front lets every lane read what one of
/// them is going to change.
struct CudaPlatform {
  static constexpr bool kWaits = true;

  template <typename Function>
  __device__ void lanes(std::uint32_t n, Function function) const {
    __syncwarp();
    for (std::uint32_t i = lane(); i < n; i += kWarp) function(i);
    __syncwarp();
  }
  template <typename Function>
  __device__ std::uint32_t mask(std::uint32_t n, Function function) const {
    __syncwarp();
    const bool holds = lane() < n && function(lane());
    const std::uint32_t bits = __ballot_sync(kAll, holds);
    __syncwarp();
    return bits;
  }
  template <std::uint32_t kCount, typename Function>
  __device__ Masks<kCount> masks(std::uint32_t n, Function function) const {
    __syncwarp();
    const std::uint32_t bits = lane() < n ? function(lane()) : 0;
    Masks<kCount> masks;
    for (std::uint32_t i = 0; i < kCount; ++i)
      masks.at[i] = __ballot_sync(kAll, (bits >> i & 1) != 0);
    __syncwarp();
    return masks;
  }
  template <typename Function, typename Visitor>
  __device__ void scan(std::uint32_t n, Function function, Visitor visit) const {
    __syncwarp();
    const std::uint32_t mine = lane() < n ? function(lane()) : 0;
    __syncwarp();
    std::uint32_t sum = mine;
    for (std::uint32_t distance = 1; distance < kWarp; distance *= 2) {
      const std::uint32_t before = __shfl_up_sync(kAll, sum, distance);
      if (lane() >= distance) sum += before;
    }
    if (lane() < n) visit(lane(), sum - mine);
    __syncwarp();
  }
  template <typename Function>
  __device__ std::uint64_t sum(std::uint32_t n, Function function) const {
    __syncwarp();
    const std::uint32_t mine = lane() < n ? function(lane()) : 0;
    __syncwarp();
    const std::uint64_t high = __reduce_add_sync(kAll, mine >> 16);
    return (high << 16) + __reduce_add_sync(kAll, mine & 0xffff);
  }
  template <typename Function>
  __device__ void one(Function function) const {
    __syncwarp();
    if (lane() == 0) function();
    __syncwarp();
  }
  template <typename Function>
  __device__ std::uint64_t ask(Function function) const {
    __syncwarp();
    unsigned long long value = 0;
    if (lane() == 0) value = static_cast<unsigned long long>(function());
    value = __shfl_sync(kAll, value, 0);
    __syncwarp();
    return value;
  }
  __device__ std::uint32_t lane() const { return threadIdx.x % kWarp; }
  __device__ std::uint32_t width() const { return kWarp; }

  __device__ std::uint64_t load_word(const std::uint64_t* word) const {
    return ptx::ld_acquire_gpu(word);
  }
  __device__ void store_word(std::uint64_t* word, std::uint64_t value) const {
    ptx::st_release_gpu(word, value);
  }
  __device__ void count(std::uint64_t* word) const { ptx::red_relaxed_gpu_add(word, 1); }
  __device__ std::uint64_t load_shared(const std::uint64_t* word) const {
    return ptx::ld_acquire_cta(word);
  }
  __device__ void store_shared(std::uint64_t* word, std::uint64_t value) const {
    ptx::st_release_cta(word, value);
  }
  __device__ std::uint64_t add_shared(std::uint64_t* word, std::uint64_t value) const {
    return ptx::atom_acq_rel_cta_add(word, value);
  }
  __device__ bool replace_shared(std::uint64_t* word, std::uint64_t& seen,
                                 std::uint64_t value) const {
    const std::uint64_t before = ptx::atom_acq_rel_cta_cas(word, seen, value);
    const bool replaced = before == seen;
    seen = before;
    return replaced;
  }
  __device__ std::uint64_t load_far(const std::uint64_t* word) const {
    return device::ptx::ld_acquire_sys(word);
  }
  __device__ void store_far(std::uint64_t* word, std::uint64_t value) const {
    device::ptx::st_release_sys(word, value);
  }
  __device__ std::uint32_t load_record(const std::uint32_t* word) const {
    return device::ptx::ld_acquire_sys(word);
  }

  template <typename T>
  __device__ T load(const std::byte* from) const {
    if constexpr (sizeof(T) == sizeof(Vector))
      return ptx::ld_relaxed_sys(reinterpret_cast<const Vector*>(from));
    else
      return device::ptx::ld_relaxed_sys(reinterpret_cast<const T*>(from));
  }
  template <typename T>
  __device__ void store(std::byte* to, const T& value) const {
    ptx::st_relaxed_sys(reinterpret_cast<T*>(to), value);
  }
  __device__ void fence() const { device::ptx::fence_acq_rel_sys(); }
  __device__ void fence_near() const { ptx::fence_acq_rel_gpu(); }
  // After fence(): the dispatcher calls it before what it executes in order.
  template <typename T>
  __device__ T add_far(T* word, T value) const {
    return ptx::atom_relaxed_sys_add(word, value);
  }
  template <typename T>
  __device__ bool replace_far(T* word, T& seen, T value) const {
    const T before = ptx::atom_relaxed_sys_cas(word, seen, value);
    const bool replaced = before == seen;
    seen = before;
    return replaced;
  }

  __device__ std::uint64_t now() const { return device::ptx::globaltimer(); }
  __device__ void pause() const { __nanosleep(20); }

 private:
  static constexpr std::uint32_t kWarp = 32, kAll = 0xffffffff;
};

}  // namespace shoal::emulator::gpu

#endif
