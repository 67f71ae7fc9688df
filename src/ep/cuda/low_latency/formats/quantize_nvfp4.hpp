// SPDX-License-Identifier: Apache-2.0
// quantize_nvfp4.hpp: parameters and launcher of quantize_nvfp4.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace shoal::ep::cuda {

/// Arrays in memory of the GPU, without gaps. Rows are a multiple of 64 channels.
struct QuantizeNvfp4 {
  const std::byte* x;          ///< bfloat16 [experts][rows][hidden]
  const std::int32_t* counts;  ///< [experts]: rows that are quantized, from the first one
  const float* global_scale;   ///< one value; nullptr: 1
  std::byte* values;           ///< [experts][rows][hidden / 2]: the lower channel in the lower half
  /// e4m3 [experts][row tiles][group tiles][32][4][4]: tiles of 128 rows and 4 groups, in which row
  /// r has place [r % 32][r / 32].
  std::uint8_t* scales;
  std::int32_t experts, rows, hidden;
};

/// The status of the launch.
cudaError_t launch_quantize_nvfp4(const QuantizeNvfp4& call, cudaStream_t stream);

}  // namespace shoal::ep::cuda
