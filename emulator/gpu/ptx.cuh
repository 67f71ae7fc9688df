// SPDX-License-Identifier: Apache-2.0
// ptx.cuh: the PTX instructions of the NIC on a GPU, one wrapper each, named after the instruction.
// Their addresses are generic.
#pragma once

#include <cstdint>

#include "gpu/copy.hpp"

#ifdef __CUDACC__

namespace shoal::emulator::gpu::ptx {

__device__ inline Vector ld_relaxed_sys(const Vector* at) {
  Vector value;
  asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];"
               : "=l"(value.low), "=l"(value.high)
               : "l"(at)
               : "memory");
  return value;
}
__device__ inline void st_relaxed_sys(Vector* at, const Vector& value) {
  asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(value.low), "l"(value.high)
               : "memory");
}
__device__ inline void st_relaxed_sys(std::uint64_t* at, std::uint64_t value) {
  asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
__device__ inline void st_relaxed_sys(std::uint32_t* at, std::uint32_t value) {
  asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
__device__ inline void st_relaxed_sys(std::uint16_t* at, std::uint16_t value) {
  asm volatile("st.relaxed.sys.u16 [%0], %1;" ::"l"(at), "h"(value) : "memory");
}
__device__ inline void st_relaxed_sys(std::uint8_t* at, std::uint8_t value) {
  asm volatile("st.relaxed.sys.u8 [%0], %1;" ::"l"(at), "h"(static_cast<std::uint16_t>(value))
               : "memory");
}
__device__ inline std::uint64_t ld_acquire_gpu(const std::uint64_t* at) {
  std::uint64_t value;
  asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline void st_release_gpu(std::uint64_t* at, std::uint64_t value) {
  asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
__device__ inline std::uint64_t ld_acquire_cta(const std::uint64_t* at) {
  std::uint64_t value;
  asm volatile("ld.acquire.cta.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline void st_release_cta(std::uint64_t* at, std::uint64_t value) {
  asm volatile("st.release.cta.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
__device__ inline std::uint64_t atom_acq_rel_cta_add(std::uint64_t* at, std::uint64_t value) {
  std::uint64_t before;
  asm volatile("atom.acq_rel.cta.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(at), "l"(value)
               : "memory");
  return before;
}
__device__ inline std::uint64_t atom_acq_rel_cta_cas(std::uint64_t* at, std::uint64_t compare,
                                                     std::uint64_t value) {
  std::uint64_t before;
  asm volatile("atom.acq_rel.cta.cas.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(at), "l"(compare), "l"(value)
               : "memory");
  return before;
}
__device__ inline void fence_acq_rel_gpu() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
__device__ inline void red_relaxed_gpu_add(std::uint64_t* at, std::uint64_t value) {
  asm volatile("red.relaxed.gpu.add.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
__device__ inline std::uint64_t atom_relaxed_sys_add(std::uint64_t* at, std::uint64_t value) {
  std::uint64_t before;
  asm volatile("atom.relaxed.sys.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(at), "l"(value)
               : "memory");
  return before;
}
__device__ inline std::uint32_t atom_relaxed_sys_add(std::uint32_t* at, std::uint32_t value) {
  std::uint32_t before;
  asm volatile("atom.relaxed.sys.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(at), "r"(value)
               : "memory");
  return before;
}
__device__ inline std::uint64_t atom_relaxed_sys_cas(std::uint64_t* at, std::uint64_t compare,
                                                     std::uint64_t value) {
  std::uint64_t before;
  asm volatile("atom.relaxed.sys.cas.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(at), "l"(compare), "l"(value)
               : "memory");
  return before;
}
__device__ inline std::uint32_t atom_relaxed_sys_cas(std::uint32_t* at, std::uint32_t compare,
                                                     std::uint32_t value) {
  std::uint32_t before;
  asm volatile("atom.relaxed.sys.cas.b32 %0, [%1], %2, %3;"
               : "=r"(before)
               : "l"(at), "r"(compare), "r"(value)
               : "memory");
  return before;
}

}  // namespace shoal::emulator::gpu::ptx

#endif
