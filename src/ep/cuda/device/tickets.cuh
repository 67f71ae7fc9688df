// SPDX-License-Identifier: Apache-2.0
// tickets.cuh: how the blocks of a launch share its work and find out which of them ends last.
//
// Blocks wait for other ranks, but never for a block of their own launch that may not be resident
// yet: tickets number the blocks in the order in which they start, and only the block that ends
// last waits at the end.
#pragma once

#include "ep/cuda/device/group.cuh"

#ifdef __CUDACC__

namespace shoal::ep::cuda {

/// The position of this block in the order in which the blocks of its launch started, from 0. All
/// threads of the block call.
__device__ inline std::uint32_t take_ticket(const DeviceGroup& group, KernelKind kernel) {
  __shared__ std::uint32_t ticket;
  if (threadIdx.x == 0)
    ticket = atomicAdd(&group.memory->counters[static_cast<std::uint32_t>(kernel)].ticket, 1u);
  __syncthreads();
  return ticket;
}

/// The next work item of a launch, for the calling thread alone. Items are handed out one by one
/// because SMs are not equally fast: those of one GPC share its path to memory.
__device__ inline std::uint32_t take_work(const DeviceGroup& group, KernelKind kernel) {
  return atomicAdd(&group.memory->counters[static_cast<std::uint32_t>(kernel)].work, 1u);
}

}  // namespace shoal::ep::cuda

#endif
