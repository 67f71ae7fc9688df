// SPDX-License-Identifier: Apache-2.0
// fake_gpu.hpp: runs kernels on the host, so that their logic is tested where there is no GPU.
//
// A file of kernels is compiled as C++ behind this header. Launches run at once, block after block,
// and the threads of a block are fibers that change at shuffles, barriers and polls. Memory is
// sequentially consistent, so errors of memory order are not found. A wait for a later launch ends
// the program with a message.
//
// Each thread of the host has a GPU of its own, so ranks that wait for each other run in threads
// (run_concurrently). A block then runs to its end before the next one starts: a block that waits
// for a later one of its launch does not end.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>

// The kernels are other ones than those of the library.
#define cuda fake_cuda  // NOLINT

#undef __device__
#undef __global__
#undef __host__
#undef __shared__
#undef __launch_bounds__
#undef __grid_constant__
#undef __noinline__
#define __device__
#define __global__
#define __host__
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __grid_constant__
#define __noinline__
#define __CUDACC__ 1

namespace shoal::test::fake_gpu {

struct Indices {
  uint3 thread, block;
  dim3 threads, blocks;
};
/// Indices of the fiber that runs.
extern thread_local Indices indices;
alignas(128) extern thread_local std::byte dynamic_shared[228 << 10];

using WarpWords = std::array<std::uint64_t, 32>;

/// All lanes of a warp call; each gets the words of all.
WarpWords exchange(std::uint64_t word);
/// Barrier of `threads` threads; of all that have not ended where it is 0. True if all gave true.
bool wait_barrier(std::uint32_t barrier, std::uint32_t threads, bool value = true);
void arrive_barrier(std::uint32_t barrier, std::uint32_t threads);
/// Lets the other fibers run. Ends the program when nothing changes.
void poll();
/// From now on a wait of this thread may be for another thread: it ends by the kernel's deadline.
void run_concurrently();

// Bulk copies and their barriers. Addresses in shared memory are relative. A load takes place at
// once or when its barrier is awaited, in turn; a store when its group is awaited. What reads or
// writes too early gets other data.

std::uint32_t shared_address(const void* pointer);
std::byte* at_shared(std::uint32_t address);
void init_bulk_barrier(std::uint32_t barrier, std::uint32_t arrivals);
void end_bulk_barrier(std::uint32_t barrier);
void arrive_bulk_barrier(std::uint32_t barrier, std::uint32_t bytes);
void wait_bulk_barrier(std::uint32_t barrier, std::uint32_t parity);
void bulk_load(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t barrier);
void bulk_store(void* to, std::uint32_t from, std::uint32_t bytes);
void commit_bulk_stores();
void wait_bulk_stores(std::size_t pending);
void read_bulk_stores(std::size_t pending);
void run(const std::function<void()>& kernel, std::uint32_t blocks, std::uint32_t threads);

template <typename To, typename From>
To bits_as(From value) {
  static_assert(sizeof(From) <= sizeof(std::uint64_t) && sizeof(To) <= sizeof(std::uint64_t));
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  To result;
  std::memcpy(&result, &word, sizeof result);
  return result;
}

}  // namespace shoal::test::fake_gpu

inline thread_local uint3& threadIdx = shoal::test::fake_gpu::indices.thread;
inline thread_local uint3& blockIdx = shoal::test::fake_gpu::indices.block;
inline thread_local dim3& blockDim = shoal::test::fake_gpu::indices.threads;
inline thread_local dim3& gridDim = shoal::test::fake_gpu::indices.blocks;
using std::max;
using std::min;

template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  using namespace shoal::test::fake_gpu;
  return bits_as<T>(exchange(bits_as<std::uint64_t>(value))[static_cast<unsigned>(lane) % 32]);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, int distance) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return __shfl_sync(mask, value, lane >= distance ? lane - distance : lane);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, unsigned distance) {
  return __shfl_sync(mask, value, static_cast<int>(threadIdx.x % 32 ^ distance));
}
/// The lanes whose word equals `wanted`.
inline unsigned fake_lanes_with(std::uint64_t word, std::uint64_t wanted) {
  const auto words = shoal::test::fake_gpu::exchange(word);
  unsigned lanes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) lanes |= (words[lane] == wanted ? 1u : 0u) << lane;
  return lanes;
}
inline unsigned __ballot_sync(unsigned, int value) {
  return fake_lanes_with(value != 0 ? 1 : 0, 1);
}
inline int __all_sync(unsigned mask, int value) {
  return __ballot_sync(mask, value) == ~0u ? 1 : 0;
}
inline int __any_sync(unsigned mask, int value) {
  return __ballot_sync(mask, value) != 0 ? 1 : 0;
}
template <typename T>
unsigned __match_any_sync(unsigned, T value) {
  const auto word = shoal::test::fake_gpu::bits_as<std::uint64_t>(value);
  return fake_lanes_with(word, word);
}
inline void __syncwarp() {
  shoal::test::fake_gpu::exchange(0);
}
inline void __syncthreads() {
  shoal::test::fake_gpu::wait_barrier(0, 0);
}
inline int __syncthreads_and(int value) {
  return shoal::test::fake_gpu::wait_barrier(0, 0, value != 0) ? 1 : 0;
}
inline int __syncthreads_count(int value) {
  static thread_local int count = 0;
  if (value != 0) ++count;
  __syncthreads();
  const int total = count;
  __syncthreads();
  count = 0;
  __syncthreads();
  return total;
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) {
  shoal::test::fake_gpu::poll();
}

inline int __popc(unsigned value) {
  return __builtin_popcount(value);
}
inline int __popcll(unsigned long long value) {
  return __builtin_popcountll(value);
}
inline int __ffs(unsigned value) {
  return __builtin_ffs(static_cast<int>(value));
}
inline int __clz(unsigned value) {
  return value == 0 ? 32 : __builtin_clz(value);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(std::uint64_t{a} * b >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((std::uint64_t{high} << 32 | low) >> shift % 32);
}
inline unsigned __vmaxu2(unsigned a, unsigned b) {
  return max(a & 0xffffu, b & 0xffffu) | max(a >> 16, b >> 16) << 16;
}
inline unsigned __vminu2(unsigned a, unsigned b) {
  return min(a & 0xffffu, b & 0xffffu) | min(a >> 16, b >> 16) << 16;
}
inline unsigned __vcmpeq4(unsigned a, unsigned b) {
  unsigned equal = 0;
  for (unsigned shift = 0; shift < 32; shift += 8)
    if ((a >> shift & 0xffu) == (b >> shift & 0xffu)) equal |= 0xffu << shift;
  return equal;
}
inline float __uint_as_float(unsigned bits) {
  return shoal::test::fake_gpu::bits_as<float>(bits);
}
inline unsigned __float_as_uint(float value) {
  return shoal::test::fake_gpu::bits_as<unsigned>(value);
}
template <typename T>
T __ldg(const T* from) {
  return *from;
}
template <typename T>
T __ldcs(const T* from) {
  return *from;
}
template <typename T>
void __stcs(T* to, T value) {
  *to = value;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  unsigned most = 0;
  for (const std::uint64_t word : shoal::test::fake_gpu::exchange(value))
    most = max(most, static_cast<unsigned>(word));
  return most;
}
inline int __reduce_add_sync(unsigned, int value) {
  int sum = 0;
  for (const std::uint64_t word : shoal::test::fake_gpu::exchange(static_cast<unsigned>(value)))
    sum += static_cast<int>(static_cast<unsigned>(word));
  return sum;
}
inline int __float_as_int(float value) {
  return shoal::test::fake_gpu::bits_as<int>(value);
}
inline std::size_t __cvta_generic_to_shared(const void* pointer) {
  return shoal::test::fake_gpu::shared_address(pointer);
}
template <typename T>
T __ldcg(const T* from) {
  return *from;
}

// Fibers change at calls only, so these need no atomic access.
template <typename T>
T atomicExch(T* at, T value) {
  return std::exchange(*at, value);
}
template <typename T>
T atomicAdd(T* at, T value) {
  return std::exchange(*at, *at + value);
}
template <typename T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  return std::exchange(*at, max(*at, value));
}
template <typename T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  return std::exchange(*at, min(*at, value));
}
template <typename T>
T atomicAnd(T* at, T value) {
  return std::exchange(*at, *at & value);
}
template <typename T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return *at == expected ? std::exchange(*at, value) : *at;
}
inline unsigned atomicCAS_system(unsigned* at, unsigned expected, unsigned value) {
  __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;
}

template <typename Params>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params),
                               const Params& params) {
  const Params copy = params;
  shoal::test::fake_gpu::run([&] { kernel(copy); }, config->gridDim.x, config->blockDim.x);
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, Kernel*) {
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
