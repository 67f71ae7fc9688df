// SPDX-License-Identifier: Apache-2.0
// launch.cuh: how low-latency kernels are launched, begin and end.
#pragma once

#include "ep/cuda/device/tickets.cuh"
#include "ep/cuda/low_latency/device/places.cuh"
#include "shoal/device/ptx.cuh"

namespace shoal::ep::cuda {

/// The first call of every kernel: waits for the kernel before it on the stream and allows the next
/// one to be set up.
///
/// A receive that is chained to its send does not wait. Everything before the send has ended,
/// because the send waited for it before it allowed the receive to be set up. The receive ends only
/// after the send (end_chained).
__device__ inline void begin_kernel(bool chained = false) {
  if (!chained) ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
}
__device__ inline void end_chained(bool chained) {
  if (chained) ptx::griddepcontrol_wait();
}

/// The blocks of a launch that run a send or a receive, and the number of this one among them.
struct BlockRange {
  std::uint32_t me, count;
};
__device__ inline BlockRange all_blocks() {
  return {blockIdx.x, gridDim.x};
}

/// Counts the blocks that have read the epoch: returns to thread 0 how many got here before, for
/// end_kernel. All threads call, after a barrier of the block before which they have read the
/// epoch.
__device__ inline std::uint32_t pass_epoch(const DeviceGroup& group, KernelKind kernel,
                                           bool ordered) {
  if (ordered || threadIdx.x != 0) return 0;
  return atomicAdd(&group.memory->counters[static_cast<std::uint32_t>(kernel)].done, 1u);
}

/// Ends the part of a block. One of the `blocks` blocks calls `last`, by warp 0 (`ordered`) or its
/// first thread. With `ordered` that is the block that ends last, after the reads and writes of all
/// blocks. Without it, it is a block that ends after all blocks have read the epoch; no block
/// waits. All threads call.
template <typename Last>
__device__ void end_kernel(const DeviceGroup& group, KernelKind kernel, bool ordered,
                           std::uint32_t passed, std::uint32_t blocks, Last&& last) {
  Counters& counters = group.memory->counters[static_cast<std::uint32_t>(kernel)];
  std::uint32_t ends = threadIdx.x == 0 && passed == blocks - 1 ? 1 : 0;
  if (ordered) {
    __syncthreads();
    if (threadIdx.x >= 32) return;
    if (lane_id() == 0) {
      __threadfence();
      ends = atomicAdd(&counters.done, 1u) == blocks - 1 ? 1 : 0;
      __threadfence();
    }
    ends = __shfl_sync(kWarp, ends, 0);
    __syncwarp();
  }
  if (ends == 0) return;
  if (threadIdx.x == 0) counters = {};
  last();
}

/// Launches a kernel that starts with begin_kernel: it may be set up before the kernel in front of
/// it has ended. CudaGroup::end reports errors.
template <typename Params>
void launch(void (*kernel)(Params), std::uint32_t blocks, std::uint32_t threads,
            std::uint32_t shared_bytes, const Params& params, const LowLatencyLimits& limits,
            cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = limits.dependent_launch ? 1 : 0;
  (void)cudaLaunchKernelEx(&config, kernel, params);
}

}  // namespace shoal::ep::cuda
