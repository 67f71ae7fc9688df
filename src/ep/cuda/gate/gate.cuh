// SPDX-License-Identifier: Apache-2.0
// gate.cuh: the gate of tensors in GPU memory; parameters and launcher of gate.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "shoal/ep/gate.hpp"

namespace shoal::ep::cuda {

/// Arrays in memory of the GPU, without gaps. Options as checked by GateOptions::validate.
struct Gate {
  /// Shared memory of one token: its scores, selections and groups.
  static constexpr std::int32_t kMostExperts = 4096;

  const float* logits;     ///< [tokens][experts]
  const float* bias;       ///< [experts]; nullptr: none
  std::int64_t* topk_idx;  ///< [tokens][top_k]
  float* topk_weights;     ///< [tokens][top_k]
  std::int64_t tokens;
  std::int32_t experts, groups, groups_kept, top_k;
  bool softmax, normalize;
  float scaling;
};

/// The status of the launch; cudaErrorInvalidValue for more than kMostExperts experts.
cudaError_t launch_gate(const Gate& call, cudaStream_t stream);

/// Arguments are checked, apart from the number of experts. Throws Error{unsupported} for too many,
/// Error{system} with CUDA's reason where the kernel does not start.
void gate(const ConstTensorView& logits, const ConstTensorView& bias, const GateOptions& options,
          const GateArrays& to);

}  // namespace shoal::ep::cuda
