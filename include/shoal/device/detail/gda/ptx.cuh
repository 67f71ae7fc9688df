// SPDX-License-Identifier: Apache-2.0
// ptx.cuh: the PTX instructions of shared queues that CUDA C++ and shoal/device/ptx.cuh do not
// offer, one wrapper each, named after the instruction.
#pragma once

#include <cstdint>

#include <shoal/device/ptx.cuh>

#ifdef __CUDACC__

namespace shoal::device::gda::ptx {

__device__ inline std::uint64_t ld_acquire_gpu(const std::uint64_t* at) {
  std::uint64_t value;
  asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline std::uint64_t ld_relaxed_gpu(const std::uint64_t* at) {
  std::uint64_t value;
  asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline void st_release_gpu(std::uint64_t* at, std::uint64_t value) {
  asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
__device__ inline void st_relaxed_gpu(std::uint64_t* at, std::uint64_t value) {
  asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
__device__ inline std::uint64_t atom_acquire_gpu_cas(std::uint64_t* at, std::uint64_t compare,
                                                     std::uint64_t value) {
  std::uint64_t before;
  asm volatile("atom.acquire.gpu.cas.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(at), "l"(compare), "l"(value)
               : "memory");
  return before;
}
__device__ inline std::uint64_t atom_relaxed_gpu_cas(std::uint64_t* at, std::uint64_t compare,
                                                     std::uint64_t value) {
  std::uint64_t before;
  asm volatile("atom.relaxed.gpu.cas.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(at), "l"(compare), "l"(value)
               : "memory");
  return before;
}
__device__ inline std::uint64_t atom_relaxed_gpu_add(std::uint64_t* at, std::uint64_t value) {
  std::uint64_t before;
  asm volatile("atom.relaxed.gpu.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(at), "l"(value)
               : "memory");
  return before;
}
__device__ inline std::uint64_t atom_acq_rel_gpu_cas(std::uint64_t* at, std::uint64_t compare,
                                                     std::uint64_t value) {
  std::uint64_t before;
  asm volatile("atom.acq_rel.gpu.cas.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(at), "l"(compare), "l"(value)
               : "memory");
  return before;
}
__device__ inline void atom_acq_rel_gpu_max(std::uint64_t* at, std::uint64_t value) {
  [[maybe_unused]] std::uint64_t before;
  asm volatile("atom.acq_rel.gpu.max.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(at), "l"(value)
               : "memory");
}
/// Registers of devices: neither combined nor repeated.
__device__ inline void st_mmio_relaxed_sys(std::uint64_t* at, std::uint64_t value) {
  asm volatile("st.mmio.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

}  // namespace shoal::device::gda::ptx

#endif
