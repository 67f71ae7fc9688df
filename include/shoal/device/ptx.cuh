// SPDX-License-Identifier: Apache-2.0
// shoal/device/ptx.cuh: one wrapper per PTX instruction that CUDA C++ has no function for, named
// after the instruction (PTX ISA, chapter "Instructions"). No other file contains inline assembly.
//
// Wrappers without a state space in their name take generic addresses; `_global` takes a pointer
// into global memory and `_shared` an address in the shared window, which saves the hardware the
// distinction. All are volatile: the compiler keeps their order among each other.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/config.hpp>

#ifdef __CUDACC__

namespace shoal::ptx {

// Any memory, at system scope: the other side is another GPU or the host.

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

/// red.relaxed.sys.add: unordered.
__device__ inline void red_relaxed_sys_add(std::uint64_t* address, std::uint64_t value) {
  asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(address)),
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

// Any memory, among the threads of this GPU: queues that kernels share.

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

// Global memory at system scope. Relaxed loads bypass the first-level cache, which does not track
// what other GPUs write.

__device__ inline std::int32_t ld_relaxed_sys_global(const std::int32_t* at) {
  std::int32_t value;
  asm volatile("ld.relaxed.sys.global.s32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline std::uint32_t ld_relaxed_sys_global(const std::uint32_t* at) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline std::uint64_t ld_relaxed_sys_global(const std::uint64_t* at) {
  std::uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline float ld_relaxed_sys_global(const float* at) {
  float value;
  asm volatile("ld.relaxed.sys.global.f32 %0, [%1];" : "=f"(value) : "l"(at) : "memory");
  return value;
}
/// Four words. Each is read atomically; the four together are not.
__device__ inline uint4 ld_relaxed_sys_global(const uint4* at) {
  uint4 data;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(data.x), "=r"(data.y), "=r"(data.z), "=r"(data.w)
               : "l"(at)
               : "memory");
  return data;
}
__device__ inline std::uint64_t ld_acquire_sys_global(const std::uint64_t* at) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}

__device__ inline void st_relaxed_sys_global(std::uint32_t* at, std::uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
__device__ inline void st_relaxed_sys_global(std::uint64_t* at, std::uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
/// Four words, each written atomically.
__device__ inline void st_relaxed_sys_global(uint4* at, const uint4& data) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(data.x),
               "r"(data.y), "r"(data.z), "r"(data.w)
               : "memory");
}
__device__ inline void st_release_sys_global(std::uint64_t* at, std::uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
/// Within this GPU. Returns the value before.
__device__ inline std::uint32_t atom_acq_rel_gpu_global_add(std::uint32_t* at,
                                                            std::uint32_t value) {
  std::uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(at), "r"(value)
               : "memory");
  return before;
}

/// Within this block. Returns the value before.
__device__ inline std::uint32_t atom_acq_rel_cta_global_add(std::uint32_t* at,
                                                            std::uint32_t value) {
  std::uint32_t before;
  asm volatile("atom.acq_rel.cta.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(at), "r"(value)
               : "memory");
  return before;
}

__device__ inline void prefetch_global_l2(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/// %globaltimer: nanoseconds, in steps of up to a microsecond. The compiler may move other loads
/// and stores across it.
__device__ inline std::uint64_t globaltimer() {
  std::uint64_t value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
}

/// Passes `value` through an empty instruction: the optimizer keeps it in a register and does not
/// compute it again at each use.
__device__ inline std::uint32_t keep_in_register(std::uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// The dynamic shared memory of the block.
__device__ inline std::byte* dynamic_shared() {
  extern __shared__ __align__(128) std::byte dynamic_shared_bytes[];
  return dynamic_shared_bytes;
}

// Dependent launches (sm_90 and later; nothing before).

/// Allows the next kernel of the stream to be set up while this one runs.
__device__ inline void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Waits until all earlier kernels of the stream are complete and their writes visible.
__device__ inline void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Conversions: two float32 values, rounded to nearest even; `low` goes to the lower half.

__device__ inline std::uint32_t cvt_rn_bf16x2_f32(float high, float low) {
  std::uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ inline std::uint32_t cvt_rn_f16x2_f32(float high, float low) {
  std::uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ inline float cvt_f32_f16(std::uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
/// 1 / value to about a unit in the last place; 0 where that is subnormal.
__device__ inline float rcp_approx_ftz_f32(float value) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(value));
  return inverse;
}
#if __CUDA_ARCH__ >= 890
__device__ inline std::uint16_t cvt_rn_satfinite_e4m3x2_f32(float high, float low) {
  std::uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}
__device__ inline std::uint32_t cvt_rn_f16x2_e4m3x2(std::uint16_t codes) {
  std::uint32_t values;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(values) : "h"(codes));
  return values;
}
#endif

// Named barriers of a block. Barrier 0 is that of __syncthreads.

template <std::uint32_t kBarrier>
__device__ void bar_sync(std::uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "r"(threads) : "memory");
}
/// For a barrier that is chosen at run time, by a fixed number of threads.
template <std::uint32_t kThreads>
__device__ void bar_sync_any(std::uint32_t barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}
template <std::uint32_t kThreads>
__device__ void bar_arrive_any(std::uint32_t barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

/// barrier.sync and barrier.red.and of `kThreads` threads, which may be in divergent code.
template <std::uint32_t kThreads>
__device__ void barrier_sync(std::uint32_t barrier) {
  asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}
template <std::uint32_t kThreads>
__device__ bool barrier_red_and(std::uint32_t barrier, bool value) {
  std::int32_t all;
  asm volatile(
      "{.reg .pred p, q; setp.ne.s32 p, %1, 0;"
      " barrier.red.and.pred q, %2, %3, p; selp.s32 %0, 1, 0, q;}"
      : "=r"(all)
      : "r"(static_cast<std::int32_t>(value)), "r"(barrier), "n"(kThreads)
      : "memory");
  return all != 0;
}

/// Orders generic accesses before later bulk copies of the same bytes, and the other way round.
__device__ inline void fence_proxy_async() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

#if __CUDA_ARCH__ >= 900

// Shared memory by its address in the shared window (PTX .shared), and bulk copies (TMA).

__device__ inline uint4 ld_shared_v4(std::uint32_t from) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(from)
               : "memory");
  return value;
}
__device__ inline void st_shared_v4(std::uint32_t to, const uint4& value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ inline void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void mbarrier_inval(std::uint32_t barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void mbarrier_arrive_expect_tx(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
/// mbarrier.try_wait.parity, repeated until it succeeds.
__device__ inline void mbarrier_try_wait_parity(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\n"
      "bra again;\n"
      "ready:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// Global to shared memory; completion is counted on `barrier`.
__device__ inline void cp_async_bulk_shared_global(std::uint32_t shared, const void* global,
                                                   std::uint32_t bytes, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}
/// Shared to global memory; completion is counted in the thread's bulk group.
__device__ inline void cp_async_bulk_global_shared(void* global, std::uint32_t shared,
                                                   std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared), "r"(bytes)
               : "memory");
}
__device__ inline void cp_async_bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
template <int kPending>
__device__ void cp_async_bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
template <int kPending>
__device__ void cp_async_bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

#endif

}  // namespace shoal::ptx

#endif  // __CUDACC__
