// SPDX-License-Identifier: Apache-2.0
// wait_signals.hpp: parameters and launcher of wait_signals.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shoal::ep::cuda {

struct WaitSignals {
  const std::int32_t* signals;  ///< [experts][blocks], in memory of the GPU
  /// [experts]: rows of each expert; only blocks with rows count. nullptr: all blocks count.
  const std::int32_t* counts;
  std::int32_t experts, blocks;
  std::int32_t block_rows;   ///< rows of a block
  std::int32_t value;        ///< the value that each signal reaches
  std::uint64_t timeout_ns;  ///< the kernel ends the program's work on the GPU after it
};

/// The status of the launch.
cudaError_t launch_wait_signals(const WaitSignals& call, cudaStream_t stream);

}  // namespace shoal::ep::cuda
