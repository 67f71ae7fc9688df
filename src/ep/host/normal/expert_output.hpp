// SPDX-License-Identifier: Apache-2.0
// expert_output.hpp: CombineOptions::topk_rows and topk_idx on the host: expert output and weights
// in the form in which a combine sends them.
#pragma once

#include "shoal/ep/normal.hpp"

namespace shoal::ep::host {

struct ExpertOutput {
  Tensor y;        ///< [rows, hidden]
  Tensor weights;  ///< float32 [rows, top_k]; undefined without weights
};

/// The sums of `options.topk_rows`, and the weights with zeros where a top-k slot has no expert
/// here. Tensors that need no change refer to the caller's memory.
ExpertOutput prepare_expert_output(const TensorView& y, const CombineOptions& options);

}  // namespace shoal::ep::host
