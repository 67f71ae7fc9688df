// SPDX-License-Identifier: Apache-2.0
// kernel.hpp: the NIC on a GPU as a kernel that runs until it is stopped.
#pragma once

#include <cuda_runtime_api.h>

#include "gpu/state.hpp"

namespace shoal::emulator::gpu {

/// Of a block. More would leave too few registers for dispatchers.
inline constexpr int kMostWarps = 16;

struct NicShape {
  int blocks = 4;
  int warps = 16;                 ///< of a block
  std::uint32_t dispatchers = 0;  ///< of prepare_nic()
};

/// Loads the kernel for at most `pairs` queue pairs on the current GPU, and decides how many
/// dispatchers it has: as many as its shared memory has room for, up to one for each queue pair.
cudaError_t prepare_nic(std::uint32_t pairs, NicShape& shape);

/// Block 0 has the dispatchers; the warps of the other blocks are workers, or those of block 0 if
/// it is the only one. `state` is in memory of the current GPU. `resumes`: after a slice that is
/// before it on the stream.
cudaError_t launch_nic(NicState* state, std::uint32_t pairs, const NicShape& shape,
                       cudaStream_t stream, bool resumes);

/// Of NicState::saved.
std::size_t saved_bytes(std::uint32_t pairs);

}  // namespace shoal::emulator::gpu
