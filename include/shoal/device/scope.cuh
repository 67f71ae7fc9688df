// SPDX-License-Identifier: Apache-2.0
// shoal/device/scope.cuh: which threads perform an operation together: a thread, a warp or a block.
//
// rank() and size() number the threads of a scope; thread 0 is its leader. sync() is a barrier
// among them that also orders their memory accesses. all(value) is sync() and returns, on every
// thread, whether `value` is true on all of them.
#pragma once

#include <cstdint>
#include <type_traits>

#include <shoal/config.hpp>
#include <shoal/device/ptx.cuh>

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

/// Four consecutive warps, the first of them with a number that is a multiple of 4, in a block of a
/// multiple of 128 threads. Uses the hardware barriers 8 to 15 of the block: the lowest for its
/// first warpgroup.
struct Warpgroup {
  __device__ unsigned rank() const { return Warp{}.rank() + 32 * (warp() % 4); }
  __device__ unsigned size() const { return 128; }
  __device__ void sync() const { ptx::barrier_sync<128>(barrier()); }
  __device__ bool all(bool value) const { return ptx::barrier_red_and<128>(barrier(), value); }

 private:
  __device__ static unsigned barrier() { return 8 + warp() / 4; }
  __device__ static unsigned warp() {
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) / 32;
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
inline constexpr bool is_scope = std::is_same_v<S, Thread> || std::is_same_v<S, Warp> ||
                                 std::is_same_v<S, Warpgroup> || std::is_same_v<S, Block>;
/// The type of atomics and waits: integers of 4 or 8 bytes, at a multiple of their size.
template <typename T>
inline constexpr bool is_word = std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8);

// Templates of functions write SHOAL_SCOPE and SHOAL_WORD for the concepts: kernels that include
// nvshmem.h may be C++17, which has none.
#ifdef __cpp_concepts
template <typename S>
concept Scope = is_scope<S>;
template <typename T>
concept Word = is_word<T>;
#define SHOAL_SCOPE Scope
#define SHOAL_WORD Word
#else
#define SHOAL_SCOPE typename
#define SHOAL_WORD typename
#endif

namespace detail {
template <typename T>
struct ExactlyOf {
  using type = T;
};
}  // namespace detail

/// T, in parameters whose arguments do not take part in deducing it (std::type_identity_t).
template <typename T>
using Exactly = typename detail::ExactlyOf<T>::type;

}  // namespace shoal::device
