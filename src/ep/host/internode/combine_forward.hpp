// SPDX-License-Identifier: Apache-2.0
// combine_forward.hpp: the part of a combine that crosses nodes.
#pragma once

#include <vector>

#include "ep/host/normal/normal.hpp"

namespace shoal::ep::host {

/// Where the answers of the members of this node lie, as addresses here; nullptr for other members.
struct LocalExpertOutput {
  std::vector<const std::byte*> rows;     ///< [ranks]
  std::vector<const std::byte*> weights;  ///< [ranks]; float32 [.., top_k], expert-major [.., 1]
};

/// Sums the answers to the rail peers' tokens on this node and sends each of them its sums, and
/// adds up those of all nodes for this member's own tokens. Returns when all of it is done.
void combine_forward(HostGroup& group, const TensorView& y, const HandleState& handle,
                     const CombineOptions& options, const LocalExpertOutput& answers,
                     Combined& combined);

}  // namespace shoal::ep::host
