// SPDX-License-Identifier: Apache-2.0
// expert_kernels.hpp: the kernels of the experts on a GPU.
//
// Two launches compute, for each row x of each expert,
//   inner = silu(x * gate) . (x * up)    y = weight * (inner * down)
// in float32: products are rounded, then added in ascending order of the summed index, as on the
// host; y is rounded to bfloat16 once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shoal::moe {

/// Strides of rows: element i of row r of expert e is at e * expert + r * row + i * element.
struct RowStrides {
  std::int64_t expert = 0, row = 0, element = 1;
};

/// Rows of one PE's experts. Pointers are to GPU memory.
struct ExpertRows {
  std::int32_t experts = 0;
  std::int64_t hidden = 0, ffn = 0;
  std::int64_t most_rows = 0;              ///< at least the rows of any expert
  const std::int32_t* counts = nullptr;    ///< [experts]: the rows of each
  const std::int32_t* ends = nullptr;      ///< [experts]: expert e has rows from ends[e - 1] on; or
                                           ///< nullptr: all experts have rows from 0 on
  const void* x = nullptr;                 ///< bfloat16, or float8_e4m3 if there are scales
  const float* scales = nullptr;           ///< of groups of 128 channels
  const float* row_weights = nullptr;      ///< by row; nullptr: 1
  const std::uint16_t* weights = nullptr;  ///< bfloat16: load_weights of each expert
  float* inner = nullptr;                  ///< memory for ffn values of each row
  std::uint16_t* y = nullptr;              ///< bfloat16
  RowStrides x_strides{}, scale_strides{}, inner_strides{}, y_strides{};
};

/// Loads the code. Loading it later could wait for kernels of other PEs that wait for this PE.
cudaError_t load_experts();

/// Queues the kernels.
cudaError_t launch_experts(const ExpertRows& rows, cudaStream_t stream);

}  // namespace shoal::moe
