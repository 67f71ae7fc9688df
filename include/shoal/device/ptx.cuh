// SPDX-License-Identifier: Apache-2.0
// shoal/device/ptx.cuh: one wrapper per PTX instruction that CUDA C++ has no function for, named
// after the instruction (PTX ISA, section "Data Movement and Conversion Instructions").
//
// All of them take generic addresses and work at system scope: the other side is another GPU or the
// host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <shoal/config.hpp>

namespace shoal::device::ptx {

/// ld.relaxed.sys: reads memory, past the caches of this SM.
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
/// One aligned access of 16 bytes. Each of the two words is read in one piece.
__device__ inline ulonglong2 ld_relaxed_sys(const ulonglong2* address) {
  ulonglong2 value;
  asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];"
               : "=l"(value.x), "=l"(value.y)
               : "l"(address)
               : "memory");
  return value;
}

/// ld.relaxed.sys.b128: sixteen bytes read as one (PTX ISA: a relaxed access of type b128 is
/// single-copy atomic). `low` has the lower address.
__device__ inline void ld_relaxed_sys_b128(const std::byte* address, std::uint64_t& low,
                                           std::uint64_t& high) {
  asm volatile(
      "{\n.reg .b128 packet;\nld.relaxed.sys.global.b128 packet, [%2];\nmov.b128 {%0, %1}, packet;\n}\n"
      : "=l"(low), "=l"(high)
      : "l"(__cvta_generic_to_global(address))
      : "memory");
}

/// ld.acquire.sys: later accesses of this thread come after it.
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

/// st.relaxed.sys: one store, unordered.
__device__ inline void st_relaxed_sys(std::uint32_t* address, std::uint32_t value) {
  asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
__device__ inline void st_relaxed_sys(std::uint64_t* address, std::uint64_t value) {
  asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

/// st.relaxed.sys.b128: sixteen bytes written as one.
__device__ inline void st_relaxed_sys_b128(std::byte* address, std::uint64_t low,
                                           std::uint64_t high) {
  asm volatile(
      "{\n.reg .b128 packet;\nmov.b128 packet, {%1, %2};\nst.relaxed.sys.global.b128 [%0], packet;\n}\n" ::
          "l"(__cvta_generic_to_global(address)),
      "l"(low), "l"(high)
      : "memory");
}

/// st.release.sys: earlier accesses of this thread come before it.
__device__ inline void st_release_sys(std::uint32_t* address, std::uint32_t value) {
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
__device__ inline void st_release_sys(std::uint64_t* address, std::uint64_t value) {
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

/// red.release.sys.add: an atomic addition without a result; earlier accesses come before it.
__device__ inline void red_release_sys_add(std::uint64_t* address, std::uint64_t value) {
  asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(address)),
               "l"(value)
               : "memory");
}

/// fence.acq_rel.sys
__device__ inline void fence_acq_rel_sys() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}
/// fence.sc.sys: also orders earlier stores before later loads.
__device__ inline void fence_sc_sys() {
  asm volatile("fence.sc.sys;" ::: "memory");
}

/// %globaltimer: nanoseconds, in steps of up to a microsecond.
__device__ inline std::uint64_t globaltimer() {
  std::uint64_t value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value)::"memory");
  return value;
}

}  // namespace shoal::device::ptx
