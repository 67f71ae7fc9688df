// SPDX-License-Identifier: Apache-2.0
// expert_shapes.hpp: how tests of kernels spread experts over the ranks and nodes of a shape.
#pragma once

#include <memory>
#include <vector>

#include "ep/plan/shape.hpp"

namespace shoal::test {

/// `first`: as in GroupOptions. The shape has its ranks.
inline void spread_experts(ep::detail::Shape& shape, std::int32_t experts,
                           const std::vector<std::int32_t>& first = {}) {
  shape.experts = experts;
  shape.partition = std::make_shared<ep::detail::Partition>(experts, shape.ranks, first);
  shape.local_experts = shape.partition->largest();
}

/// The shape with the experts of each node, as if it were a rank.
inline ep::detail::Shape node_shape(ep::detail::Shape shape) {
  std::vector<std::int32_t> first;
  for (std::int32_t rank = 0; rank < shape.ranks; rank += shape.ranks / shape.nodes)
    first.push_back(shape.first_expert(rank));
  shape.ranks = shape.nodes;
  spread_experts(shape, shape.experts, first);
  return shape;
}

}  // namespace shoal::test
