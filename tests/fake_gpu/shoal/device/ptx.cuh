// SPDX-License-Identifier: Apache-2.0
// ptx.cuh: the instructions of include/shoal/device/ptx.cuh on the fake GPU.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <type_traits>

#include "ep/numeric/float16.hpp"
#include "ep/numeric/float8.hpp"
#include "fake_gpu/fake_gpu.hpp"

namespace shoal::ptx {

namespace numeric = ep::numeric;

inline float rcp_approx_ftz_f32(float value) {
  return 1 / value;
}

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
inline void red_release_sys_add(std::uint64_t* at, std::uint64_t value) {
  __atomic_fetch_add(at, value, __ATOMIC_RELEASE);
}
inline std::uint64_t ld_acquire_gpu(const std::uint64_t* at) {
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
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

template <typename T>
T ld_relaxed_sys_global(const T* at) {
  if constexpr (std::is_integral_v<T>) return __atomic_load_n(at, __ATOMIC_RELAXED);
  return *at;
}
inline std::uint64_t ld_acquire_sys_global(const std::uint64_t* at) {
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
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
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
}
inline std::uint32_t atom_acq_rel_gpu_global_add(std::uint32_t* at, std::uint32_t value) {
  return atomicAdd(at, value);
}
inline std::uint32_t atom_acq_rel_cta_global_add(std::uint32_t* at, std::uint32_t value) {
  return atomicAdd(at, value);
}
inline void prefetch_global_l2(const void*) {}
inline std::uint32_t keep_in_register(std::uint32_t value) {
  return value;
}
inline std::byte* dynamic_shared() {
  return test::fake_gpu::dynamic_shared;
}
inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}
inline std::uint32_t cvt_rn_bf16x2_f32(float high, float low) {
  return numeric::to_bf16(low).bits | std::uint32_t{numeric::to_bf16(high).bits} << 16;
}
inline std::uint32_t cvt_rn_f16x2_f32(float high, float low) {
  return numeric::to_fp16(low).bits | std::uint32_t{numeric::to_fp16(high).bits} << 16;
}
inline std::uint16_t cvt_rn_satfinite_e4m3x2_f32(float high, float low) {
  return static_cast<std::uint16_t>(numeric::encode_e4m3(low) |
                                    std::uint32_t{numeric::encode_e4m3(high)} << 8);
}
inline std::uint32_t cvt_rn_f16x2_e4m3x2(std::uint16_t codes) {
  return cvt_rn_f16x2_f32(numeric::decode_e4m3(static_cast<std::uint8_t>(codes >> 8)),
                          numeric::decode_e4m3(static_cast<std::uint8_t>(codes)));
}
inline float cvt_f32_f16(std::uint16_t bits) {
  return numeric::to_float(numeric::Fp16{bits});
}

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

template <std::uint32_t kThreads>
void barrier_sync(std::uint32_t barrier) {
  test::fake_gpu::wait_barrier(barrier, kThreads);
}
template <std::uint32_t kThreads>
bool barrier_red_and(std::uint32_t barrier, bool value);

inline void fence_proxy_async() {}
inline void fence_mbarrier_init() {}
inline uint4 ld_shared_v4(std::uint32_t from) {
  uint4 value;
  std::memcpy(&value, test::fake_gpu::at_shared(from), sizeof value);
  return value;
}
inline void st_shared_v4(std::uint32_t to, const uint4& value) {
  std::memcpy(test::fake_gpu::at_shared(to), &value, sizeof value);
}
inline void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  test::fake_gpu::init_bulk_barrier(barrier, arrivals);
}
inline void mbarrier_inval(std::uint32_t barrier) {
  test::fake_gpu::end_bulk_barrier(barrier);
}
inline void mbarrier_arrive_expect_tx(std::uint32_t barrier, std::uint32_t bytes) {
  test::fake_gpu::arrive_bulk_barrier(barrier, bytes);
}
inline void mbarrier_try_wait_parity(std::uint32_t barrier, std::uint32_t parity) {
  test::fake_gpu::wait_bulk_barrier(barrier, parity);
}
inline void cp_async_bulk_shared_global(std::uint32_t shared, const void* global,
                                        std::uint32_t bytes, std::uint32_t barrier) {
  test::fake_gpu::bulk_load(shared, global, bytes, barrier);
}
inline void cp_async_bulk_global_shared(void* global, std::uint32_t shared, std::uint32_t bytes) {
  test::fake_gpu::bulk_store(global, shared, bytes);
}
inline void cp_async_bulk_commit_group() {
  test::fake_gpu::commit_bulk_stores();
}
template <int kPending>
void cp_async_bulk_wait_group_read() {
  test::fake_gpu::read_bulk_stores(kPending);
}
template <int kPending>
void cp_async_bulk_wait_group() {
  test::fake_gpu::wait_bulk_stores(kPending);
}

}  // namespace shoal::ptx
