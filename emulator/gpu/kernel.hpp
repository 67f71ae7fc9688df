// SPDX-License-Identifier: Apache-2.0
// kernel.hpp: the NIC on a GPU as a kernel that runs until it is stopped.
#pragma once

#include <cuda_runtime_api.h>

#include "gpu/state.hpp"

namespace shoal::emulator::gpu {

/// Of a block. More would leave too few registers for the dispatcher.
inline constexpr int kMostWarps = 16;

/// Block 0 has the dispatcher; the warps of the other blocks are workers, or those of block 0 if it
/// is the only one. `state` is in memory of this thread's GPU; `pairs` is the most queue pairs that
/// it will have. Loads the kernel with `load_only`, without launching it. `resumes`: after a slice
/// that is before it on the stream.
cudaError_t launch_nic(NicState* state, std::uint32_t pairs, int blocks, int warps,
                       cudaStream_t stream, bool load_only = false, bool resumes = false);

/// Of NicState::saved.
std::size_t saved_bytes(std::uint32_t pairs);

}  // namespace shoal::emulator::gpu
