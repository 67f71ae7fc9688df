// SPDX-License-Identifier: Apache-2.0
// expert_output.hpp: CombineOptions::topk_rows and topk_idx on the host: expert output and weights
// in the form in which a combine sends them.
#pragma once

#include "ep/host/rows/row_ops.hpp"
#include "ep/host/rows/worker_pool.hpp"
#include "shoal/ep/normal.hpp"

namespace shoal::ep::host {

struct ExpertOutput {
  Tensor y;        ///< [rows, hidden]
  Tensor weights;  ///< float32 [rows, top_k]; undefined without weights
};

/// The sums of `options.topk_rows`, and the weights with zeros where a top-k slot has no expert
/// here. Tensors that need no change refer to the caller's memory. Throws Error{invalid_argument}
/// for an index of topk_rows outside y. `sums`: the memory in which sums go, from which peers read
/// them; nullptr: new memory. `workers`: threads that add rows; nullptr: this one.
ExpertOutput prepare_expert_output(const ConstTensorView& y, const CombineOptions& options,
                                   std::byte* sums, Store store, WorkerPool* workers = nullptr);

}  // namespace shoal::ep::host
