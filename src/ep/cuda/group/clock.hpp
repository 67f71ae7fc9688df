// SPDX-License-Identifier: Apache-2.0
// clock.hpp: the GPU's clock, read by a kernel (clock.cu).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace shoal::ep::cuda {

/// In host memory. `question` is written last.
struct ClockReading {
  volatile std::uint64_t time;  ///< %globaltimer, nanoseconds
  volatile std::uint64_t question;
};

void launch_clock(ClockReading* reading, std::uint64_t question, cudaStream_t stream);
/// Loads the kernel's code.
void preload_clock();

}  // namespace shoal::ep::cuda
