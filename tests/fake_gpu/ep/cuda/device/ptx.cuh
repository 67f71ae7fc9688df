// SPDX-License-Identifier: Apache-2.0
// ptx.cuh: the instructions of src/ep/cuda/device/ptx.cuh on the fake GPU.
#pragma once

#include <chrono>
#include <cstddef>

#include "ep/numeric/float16.hpp"
#include "fake_gpu/fake_gpu.hpp"

namespace shoal::ep::cuda::ptx {

template <typename T>
T ld_relaxed_sys_global(const T* at) {
  return *at;
}
inline std::uint64_t ld_acquire_sys_global(const std::uint64_t* at) {
  return *at;
}
inline void st_relaxed_sys_global(std::uint32_t* at, std::uint32_t value) {
  *at = value;
}
inline void st_relaxed_sys_global(std::uint64_t* at, std::uint64_t value) {
  *at = value;
}
inline void st_relaxed_sys_global(uint4* at, const uint4& data) {
  *at = data;
}
inline void st_release_sys_global(std::uint64_t* at, std::uint64_t value) {
  *at = value;
}
inline void ld_relaxed_sys_global_b128(const std::byte* at, std::uint64_t& low,
                                       std::uint64_t& high) {
  std::memcpy(&low, at, sizeof low);
  std::memcpy(&high, at + sizeof low, sizeof high);
}
inline void st_relaxed_sys_global_b128(std::byte* at, std::uint64_t low, std::uint64_t high) {
  std::memcpy(at, &low, sizeof low);
  std::memcpy(at + sizeof low, &high, sizeof high);
}
inline void prefetch_global_l2(const void*) {}
inline std::uint64_t globaltimer() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}
inline std::uint32_t keep_in_register(std::uint32_t value) {
  return value;
}
inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}
inline std::uint32_t cvt_rn_bf16x2_f32(float high, float low) {
  return numeric::to_bf16(low).bits | std::uint32_t{numeric::to_bf16(high).bits} << 16;
}
// Not in low-latency mode.
std::uint32_t cvt_rn_f16x2_f32(float high, float low);
float cvt_f32_f16(std::uint16_t bits);

template <std::uint32_t kBarrier>
void bar_sync(std::uint32_t threads) {
  test::fake_gpu::wait_barrier(kBarrier, threads);
}
template <std::uint32_t kThreads>
void bar_sync_any(std::uint32_t barrier) {
  test::fake_gpu::wait_barrier(barrier, kThreads);
}
template <std::uint32_t kThreads>
void bar_arrive_any(std::uint32_t barrier) {
  test::fake_gpu::arrive_barrier(barrier, kThreads);
}

}  // namespace shoal::ep::cuda::ptx
