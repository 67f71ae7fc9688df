// SPDX-License-Identifier: Apache-2.0
// shoal/device/ptx.cuh: the PTX instructions that CUDA C++ has no name for, one wrapper each, named
// after it.
//
// All of them work on generic addresses and at system scope: the other side is another GPU, or the
// host.
#pragma once

#include <cstdint>
#include <type_traits>

namespace shoal::device::ptx {

/// ld.relaxed.sys: reads what is in memory now, past the caches of this SM.
__device__ inline std::uint8_t ld_relaxed_sys(const std::uint8_t* address) {
  std::uint16_t value;  // PTX has no 8-bit registers
  asm volatile("ld.relaxed.sys.u8 %0, [%1];" : "=h"(value) : "l"(address) : "memory");
  return static_cast<std::uint8_t>(value);
}
__device__ inline std::uint16_t ld_relaxed_sys(const std::uint16_t* address) {
  std::uint16_t value;
  asm volatile("ld.relaxed.sys.u16 %0, [%1];" : "=h"(value) : "l"(address) : "memory");
  return value;
}
__device__ inline std::uint32_t ld_relaxed_sys(const std::uint32_t* address) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ inline std::uint64_t ld_relaxed_sys(const std::uint64_t* address) {
  std::uint64_t value;
  asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}
/// Two words of one aligned 16-byte access, each of them read at once.
__device__ inline ulonglong2 ld_relaxed_sys(const ulonglong2* address) {
  ulonglong2 value;
  asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];"
               : "=l"(value.x), "=l"(value.y)
               : "l"(address)
               : "memory");
  return value;
}

/// ld.acquire.sys
__device__ inline std::uint32_t ld_acquire_sys(const std::uint32_t* address) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ inline std::uint64_t ld_acquire_sys(const std::uint64_t* address) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

/// st.relaxed.sys
__device__ inline void st_relaxed_sys(std::uint32_t* address, std::uint32_t value) {
  asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
__device__ inline void st_relaxed_sys(std::uint64_t* address, std::uint64_t value) {
  asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

/// st.release.sys
__device__ inline void st_release_sys(std::uint32_t* address, std::uint32_t value) {
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
__device__ inline void st_release_sys(std::uint64_t* address, std::uint64_t value) {
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

/// red.release.sys.add
__device__ inline void red_release_sys_add(std::uint64_t* address, std::uint64_t value) {
  asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(address)),
               "l"(value)
               : "memory");
}

__device__ inline void fence_acq_rel_sys() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}
__device__ inline void fence_sc_sys() {
  asm volatile("fence.sc.sys;" ::: "memory");
}

/// %globaltimer: nanoseconds; steps of up to a microsecond.
__device__ inline std::uint64_t globaltimer() {
  std::uint64_t value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value)::"memory");
  return value;
}

}  // namespace shoal::device::ptx
