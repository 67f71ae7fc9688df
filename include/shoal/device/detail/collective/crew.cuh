// SPDX-License-Identifier: Apache-2.0
// crew.cuh: the threads that perform a collective on one PE: a scope, or all blocks of a grid.
//
// rank() and size() number all threads of the crew. group_rank(), group_size(), sync() and all()
// are those of the group of threads that can synchronize: the scope, or a block. No group waits for
// another one of its PE. last() is called once by every group at its end and returns true on that
// of the last one; what the other groups have stored is then ordered before what it stores.
#pragma once

#include <shoal/device/ptx.cuh>
#include <shoal/device/scope.cuh>
#include <shoal/device/types.hpp>

namespace shoal::device::detail {

template <SHOAL_SCOPE S>
struct ScopeCrew {
  S scope;

  __device__ unsigned rank() const { return scope.rank(); }
  __device__ unsigned size() const { return scope.size(); }
  __device__ unsigned group_rank() const { return scope.rank(); }
  __device__ unsigned group_size() const { return scope.size(); }
  __device__ void sync() const { scope.sync(); }
  __device__ bool all(bool value) const { return scope.all(value); }
  __device__ bool last(const Team&) const {
    scope.sync();
    return true;
  }
};

/// All threads of a grid with one dimension.
struct GridCrew {
  __device__ unsigned rank() const { return blockIdx.x * blockDim.x + threadIdx.x; }
  __device__ unsigned size() const { return gridDim.x * blockDim.x; }
  __device__ unsigned group_rank() const { return threadIdx.x; }
  __device__ unsigned group_size() const { return blockDim.x; }
  __device__ void sync() const { __syncthreads(); }
  __device__ bool all(bool value) const { return __syncthreads_and(value) != 0; }
  __device__ bool last(const Team& team) const {
    __syncthreads();
    if (gridDim.x == 1) return true;
    bool is_last = true;
    if (threadIdx.x == 0) {
      ptx::fence_acq_rel_sys();
      auto* const finished = reinterpret_cast<unsigned long long*>(team.finished);
      is_last = atomicAdd(finished, 1ULL) == gridDim.x - 1;
      if (is_last) *team.finished = 0;
      ptx::fence_acq_rel_sys();
    }
    return __syncthreads_and(is_last) != 0;
  }
};

}  // namespace shoal::device::detail
