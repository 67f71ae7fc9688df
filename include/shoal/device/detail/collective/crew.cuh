// SPDX-License-Identifier: Apache-2.0
// crew.cuh: the threads that perform a collective on one PE: a scope, or all blocks of a grid.
//
// rank() and size() number all threads of the crew. group_rank(), group_size(), sync() and all()
// are those of the group of threads that can synchronize: the scope, or a block. No group waits for
// another one of its PE. The first thread of every group calls one of two functions once in a
// collective: count_last() and release_last() return true on the last caller. After release_last(),
// what all groups have stored before is ordered before what that thread stores.
//
// kOwnKernel: the kernel does nothing but the collective, and has bounds of its own. Other kernels
// may have 1024 threads, and then 64 registers for all that they call.
#pragma once

#include <cstddef>
#include <type_traits>

#include <shoal/device/ptx.cuh>
#include <shoal/device/scope.cuh>
#include <shoal/device/types.hpp>

namespace shoal::device::detail {

// kPacketBytes: from more bytes on, two barriers and copies take less time than packets, each of
// which costs a thread a store and polls: about six packets a thread on two H200, which for a block
// is right between 256 and 1024 threads. A constant of the type, because all PEs must agree.
template <SHOAL_SCOPE S>
struct ScopeCrew {
  static constexpr bool kOwnKernel = false;
  static constexpr std::size_t kPacketBytes = std::is_same_v<S, Thread>      ? 48
                                              : std::is_same_v<S, Warp>      ? 1536
                                              : std::is_same_v<S, Warpgroup> ? 6 << 10
                                                                             : 20 << 10;
  S scope;

  __device__ unsigned rank() const { return scope.rank(); }
  __device__ unsigned size() const { return scope.size(); }
  __device__ unsigned group_rank() const { return scope.rank(); }
  __device__ unsigned group_size() const { return scope.size(); }
  __device__ void sync() const { scope.sync(); }
  __device__ bool all(bool value) const { return scope.all(value); }
  __device__ bool count_last(const Team&) const { return true; }
  __device__ bool release_last(const Team&) const {
    ptx::fence_acq_rel_sys();
    return true;
  }
};

/// All threads of a grid with one dimension.
struct GridCrew {
  static constexpr bool kOwnKernel = true;
  static constexpr std::size_t kPacketBytes = static_cast<std::size_t>(-1);
  __device__ unsigned rank() const { return blockIdx.x * blockDim.x + threadIdx.x; }
  __device__ unsigned size() const { return gridDim.x * blockDim.x; }
  __device__ unsigned group_rank() const { return threadIdx.x; }
  __device__ unsigned group_size() const { return blockDim.x; }
  __device__ void sync() const { __syncthreads(); }
  __device__ bool all(bool value) const { return __syncthreads_and(value) != 0; }
  __device__ bool count_last(const Team& team) const {
    if (gridDim.x == 1) return true;
    auto* const finished = reinterpret_cast<unsigned long long*>(team.finished);
    if (atomicAdd(finished, 1ULL) != gridDim.x - 1) return false;
    *team.finished = 0;
    return true;
  }
  __device__ bool release_last(const Team& team) const {
    ptx::fence_acq_rel_sys();
    const bool last = count_last(team);
    if (last && gridDim.x != 1) ptx::fence_acq_rel_sys();
    return last;
  }
};

}  // namespace shoal::device::detail
