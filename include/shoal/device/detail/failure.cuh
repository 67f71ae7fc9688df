// SPDX-License-Identifier: Apache-2.0
// failure.cuh: writes the failure report that the host throws (shoal::cuda::check_failures).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <shoal/device/ptx.cuh>
#include <shoal/device/scope.cuh>
#include <shoal/device/types.hpp>

// Relocatable device code (nvcc -rdc=true): a function that is not inlined may be compiled apart
// from its kernel, without its launch bounds, and has to fit into the 64 registers of a kernel of
// 1024 threads. Slow paths are then cut into parts that take the world, requests and reports by
// reference. Elsewhere that costs the fast path: the caller prepares these in memory before it
// knows whether they are needed, which made `p` up to twice as slow.
#ifdef __CUDACC_RDC__
#define SHOAL_DEVICE_APART __noinline__
#else
#define SHOAL_DEVICE_APART
#endif

namespace shoal::device::detail {

#ifdef __CUDACC_RDC__
using PassedReport = FailureReport&;
#else
using PassedReport = FailureReport;
#endif

/// Writes `report` unless an earlier one has not been taken yet, and fills in the thread. Not
/// inlined: it would cost the caller registers.
__device__ __noinline__ inline void record(const World& world, PassedReport report) {
  FailureReport* const to = world.failure;
  if (atomicCAS_system(&to->state, static_cast<unsigned>(FailureReport::empty),
                       static_cast<unsigned>(FailureReport::filling)) != FailureReport::empty)
    return;
  report.state = FailureReport::filling;
  report.block[0] = blockIdx.x;
  report.block[1] = blockIdx.y;
  report.block[2] = blockIdx.z;
  report.thread[0] = threadIdx.x;
  report.thread[1] = threadIdx.y;
  report.thread[2] = threadIdx.z;
#ifdef __CUDACC_RDC__
  // Word by word: a copy of the whole report would take 20 registers.
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  static_assert(sizeof report % kWord == 0);
#pragma unroll 1
  for (std::size_t at = 0; at < sizeof report; at += kWord)
    memcpy(__builtin_assume_aligned(reinterpret_cast<char*>(to) + at, kWord),
           __builtin_assume_aligned(reinterpret_cast<const char*>(&report) + at, kWord), kWord);
#else
  *to = report;
#endif
  ptx::st_release_sys(&to->state, FailureReport::complete);
}

/// Reports that a wait for `variable` passed its deadline. `awaited`: -1 when no PE is known.
template <SHOAL_WORD T>
__device__ void record_wait(const World& world, FailureKind kind, const T* variable,
                            Compare compare, T expected, T seen, std::uint64_t waited_ns,
                            Pe awaited) {
  FailureReport report{};
  report.kind = kind;
  report.awaited = awaited;
  report.compare = compare;
  report.width = sizeof(T);
  report.is_signed = std::is_signed_v<T>;
  report.offset =
      static_cast<std::uint64_t>(reinterpret_cast<const std::byte*>(variable) - world.heap);
  report.expected = static_cast<std::uint64_t>(expected);
  report.seen = static_cast<std::uint64_t>(seen);
  report.waited_ns = waited_ns;
  record(world, report);
}

}  // namespace shoal::device::detail
