// SPDX-License-Identifier: Apache-2.0
// combine_forward.hpp: the part of a combine that crosses nodes.
#pragma once

#include <vector>

#include "ep/host/normal/normal.hpp"

namespace shoal::ep::host {

/// The expert output of the ranks of this node, as addresses in this process; nullptr for remote
/// ranks.
struct LocalExpertOutput {
  std::vector<const std::byte*> rows;     ///< [ranks]
  std::vector<const std::byte*> weights;  ///< [ranks]; float32 [.., top_k], expert-major [.., 1]
};

/// Sums this node's combine rows of the rail peers' tokens and sends each peer its sums. Adds the
/// sums of all nodes for the tokens of this rank. Returns when both are done.
void combine_forward(HostGroup& group, const TensorView& y, const HandleState& handle,
                     const CombineOptions& options, const LocalExpertOutput& local_expert_output,
                     Combined& combined);

}  // namespace shoal::ep::host
