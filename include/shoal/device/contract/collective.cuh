// SPDX-License-Identifier: Apache-2.0
// contract/collective.cuh: collectives over teams inside kernels (OpenSHMEM 1.5, section 9.9).
// Include shoal/device/collective.cuh, which has the definitions too.
//
//   __global__ void sum_rows(const __grid_constant__ shoal::device::World world,
//                            const __grid_constant__ shoal::device::Team team, float* rows) {
//     using namespace shoal::device;
//     reduce(Block{}, world, team, Sum{}, rows, rows, 4096);
//   }
//   sum_rows<<<1, 512, 0, stream>>>(cuda::device_world(world), cuda::device_team(team), rows);
//
// Callers. One scope of each PE of the team calls, of the same type on all PEs, all its threads
// converged with the same arguments; no PE calls in a kernel what another one queues on a stream.
// All PEs make the same calls in the same order, those of StreamCollectives and barriers
// on streams and in kernels included. Collectives that run at the same time need different teams.
// "PE i" is index i of the team. What a scope stored before is sent; on return its threads may use
// `target` and change `source`.
//
// Addresses. `target` and `source` are addresses in this PE's heap, at the same offset on every PE,
// and multiples of the element size. They must not overlap; where "in place" is said they may be
// equal. 16-byte accesses are used where both are multiples of 16.
//
// Reach. This GPU reaches the heaps of all PEs of the team with loads and stores, and the team has
// at most Team::kMaxCollectivePes PEs. shoal::cuda::device_team logs which teams these are not.
// Their calls do nothing, return false and report `no_collectives`; collectives on streams
// (shoal/cuda_collective.hpp) and of the host serve them.
//
// Failure. Nothing traps. A call returns false on all threads of the scope after World::timeout_ns
// without a PE, and the failure names it (shoal::cuda::check_failures). The contents of `target`
// are then undefined, and the team is out of step and no longer usable.
//
// How. Up to Team::packet_limit bytes per PE travel as packets of 8 bytes and the epoch of the
// call, which the receiver polls: no flag, fence or barrier. Larger ones run between two barriers,
// as do those that move above 20 KiB by a block, 6 KiB by a warpgroup, 1.5 KiB by a warp or 48 B by
// a thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <shoal/device/reduction.hpp>
#include <shoal/device/scope.cuh>
#include <shoal/device/types.hpp>

namespace shoal::device {

/// Waits until every PE of the team has called. As barrier (functions.cuh), without its quiet: only
/// what the calling scope stored before is visible afterwards.
template <SHOAL_SCOPE S>
__device__ bool sync(S scope, const World& world, const Team& team);

/// Copies `count` elements of the root's `source` to every PE's `target`, the root's included. In
/// place.
template <SHOAL_SCOPE S, typename T>
__device__ bool broadcast(S scope, const World& world, const Team& team, T* target,
                          const Exactly<T>* source, std::size_t count, Pe root);

/// Copies PE i's `source` (`count` elements) to block i of every `target` (OpenSHMEM: fcollect).
/// `source` may be block my_pe of `target`.
template <SHOAL_SCOPE S, typename T>
__device__ bool all_gather(S scope, const World& world, const Team& team, T* target,
                           const Exactly<T>* source, std::size_t count);

/// Copies block j of PE i's `source` to block i of PE j's `target`; blocks of `count` elements.
template <SHOAL_SCOPE S, typename T>
__device__ bool all_to_all(S scope, const World& world, const Team& team, T* target,
                           const Exactly<T>* source, std::size_t count);

/// An all-to-all with a size per pair of PEs.
template <SHOAL_SCOPE S>
__device__ bool all_to_all_v(S scope, const World& world, const Team& team,
                             const AllToAllV& arguments);

/// Element-wise reduction of `count` elements over all PEs, ascending by PE: the same bits on every
/// PE and in every run. In place. `op` is Sum, Prod, Min, Max, BitAnd, BitOr or BitXor.
template <SHOAL_SCOPE S, typename Op, typename T>
SHOAL_REQUIRES_REDUCTION(Op, T)
__device__ bool reduce(S scope, const World& world, const Team& team, Op op, T* target,
                       const Exactly<T>* source, std::size_t count);

/// Reduces as reduce does, but PE i gets only block i (`count` elements) of the result. `source`
/// has a block for each PE. `target` must not overlap `source`, except that it may be block my_pe
/// of it.
template <SHOAL_SCOPE S, typename Op, typename T>
SHOAL_REQUIRES_REDUCTION(Op, T)
__device__ bool reduce_scatter(S scope, const World& world, const Team& team, Op op, T* target,
                               const Exactly<T>* source, std::size_t count);

}  // namespace shoal::device
