// SPDX-License-Identifier: Apache-2.0
// shoal/device/scope.cuh: which threads perform an operation together: a thread, a warp or a block.
//
// rank() and size() number the threads of a scope; thread 0 is its leader. sync() is a barrier
// among them that also orders their memory accesses. all(value) is sync() and returns, on every
// thread, whether `value` is true on all of them.
#pragma once

#include <concepts>
#include <cstdint>

#include <shoal/config.hpp>

namespace shoal::device {

/// The calling thread alone.
struct Thread {
  __device__ unsigned rank() const { return 0; }
  __device__ unsigned size() const { return 1; }
  __device__ void sync() const {}
  __device__ bool all(bool value) const { return value; }
};

/// All 32 lanes of a warp. The last warp of a block whose size is not a multiple of 32 cannot be a
/// scope.
struct Warp {
  __device__ unsigned rank() const {
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
  }
  __device__ unsigned size() const { return 32; }
  __device__ void sync() const { __syncwarp(); }
  __device__ bool all(bool value) const {
    __syncwarp();
    return __all_sync(~0U, value) != 0;
  }
};

/// All threads of a block, of any size and shape.
struct Block {
  __device__ unsigned rank() const {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  }
  __device__ unsigned size() const { return blockDim.x * blockDim.y * blockDim.z; }
  __device__ void sync() const { __syncthreads(); }
  __device__ bool all(bool value) const { return __syncthreads_and(value) != 0; }
};

template <typename S>
concept Scope = std::same_as<S, Thread> || std::same_as<S, Warp> || std::same_as<S, Block>;

/// The type of atomics and waits: integers of 4 or 8 bytes, at a multiple of their size.
template <typename T>
concept Word = std::integral<T> && (sizeof(T) == 4 || sizeof(T) == 8);

}  // namespace shoal::device
