// SPDX-License-Identifier: Apache-2.0
// tma.cuh: bulk copies between global and shared memory (TMA), sm_90 and later.
//
// A load counts its bytes on a barrier in shared memory: barrier_init, barriers_ready, then for
// each load barrier_expect, bulk_load, barrier_wait. Stores are counted by the thread that starts
// them: bulk_store, bulk_commit, then bulk_wait_read before shared memory is written again, and
// bulk_wait_all before the stores are published.
//
// Bulk copies go through the async proxy. Data that a peer wrote with generic stores is read by
// bulk copies only after the acquire and ptx::fence_proxy_async.
#pragma once

#include "shoal/device/ptx.cuh"

#ifdef __CUDACC__
#if __CUDA_ARCH__ >= 900

namespace shoal::ep::cuda {

/// An address in the shared window (PTX .shared), as instructions on shared memory take it. A loop
/// that keeps it does not derive it from a pointer each time.
using SharedAddress = std::uint32_t;

__device__ inline SharedAddress shared_address(const void* pointer) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(pointer));
}

__device__ inline void barrier_init(std::uint64_t* barrier, std::uint32_t arrivals) {
  ptx::mbarrier_init(shared_address(barrier), arrivals);
}
/// Publishes initialised barriers. The thread that initialised them calls before any thread uses
/// them.
__device__ inline void barriers_ready() {
  ptx::fence_mbarrier_init();
}
/// Announces `bytes` of loads that complete on this barrier.
__device__ inline void barrier_expect(SharedAddress barrier, std::uint32_t bytes) {
  ptx::mbarrier_arrive_expect_tx(barrier, bytes);
}
__device__ inline void barrier_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  barrier_expect(shared_address(barrier), bytes);
}
/// Waits for the phase of this parity, the first one having parity 0.
__device__ inline void barrier_wait(SharedAddress barrier, std::uint32_t parity) {
  ptx::mbarrier_try_wait_parity(barrier, parity);
}
__device__ inline void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  barrier_wait(shared_address(barrier), parity);
}

/// Starts a load. `bytes` and both addresses are multiples of 16.
__device__ inline void bulk_load(SharedAddress shared, const void* global, std::uint32_t bytes,
                                 SharedAddress barrier) {
  ptx::cp_async_bulk_shared_global(shared, global, bytes, barrier);
}
__device__ inline void bulk_load(void* shared, const void* global, std::uint32_t bytes,
                                 std::uint64_t* barrier) {
  bulk_load(shared_address(shared), global, bytes, shared_address(barrier));
}
/// Starts a store, under the same conditions.
__device__ inline void bulk_store(void* global, const void* shared, std::uint32_t bytes) {
  ptx::cp_async_bulk_global_shared(global, shared_address(shared), bytes);
}
/// Closes the group of stores that this thread has started since the last call.
__device__ inline void bulk_commit() {
  ptx::cp_async_bulk_commit_group();
}
/// Waits until at most `pending` groups of this thread's stores still read shared memory.
template <int pending>
__device__ void bulk_wait_read() {
  ptx::cp_async_bulk_wait_group_read<pending>();
}
/// Waits until at most `pending` groups of this thread's stores are incomplete; the others are
/// visible to it.
template <int pending>
__device__ void bulk_wait() {
  ptx::cp_async_bulk_wait_group<pending>();
}
/// Waits until all stores of this thread are complete and visible to it.
__device__ inline void bulk_wait_all() {
  bulk_wait<0>();
}

}  // namespace shoal::ep::cuda

#endif
#endif
