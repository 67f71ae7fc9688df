// SPDX-License-Identifier: Apache-2.0
// nodes.hpp: which members of a group share memory, and which correspond on different nodes. Pure.
//
// A node is what the connectivity map says it is: members that reach each other by load and store
// (requirement B3), not a constant. Members with the same index on their nodes form a rail: traffic
// between nodes goes along rails.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shoal/heap.hpp"

namespace shoal::ep::detail {

struct Nodes {
  std::int32_t count = 1;             ///< of nodes
  std::int32_t size = 1;              ///< members of each
  std::int32_t mine = 0;              ///< the node of this member
  std::int32_t rail = 0;              ///< its index there
  std::vector<std::int32_t> node_of;  ///< by member
  std::vector<std::int32_t> rail_of;  ///< by member
  std::vector<std::int32_t> members;  ///< [count][size]
  std::vector<std::int32_t>
      before_on_node;  ///< [count][members]: how many members of that node come before

  std::int32_t member(std::int32_t node, std::int32_t index) const {
    return members[node * size + index];
  }
  std::int32_t rail_peer(std::int32_t node) const { return member(node, rail); }
  bool here(std::int32_t member) const { return node_of[member] == mine; }
  std::int32_t ranks() const { return static_cast<std::int32_t>(node_of.size()); }
  /// The number of `other` among the members that are not on the node of `owner`, ascending.
  std::int32_t remote_index(std::int32_t owner, std::int32_t other) const {
    return other - before_on_node[node_of[owner] * ranks() + other];
  }
};

/// From the domain of every member (equal numbers: loads and stores reach), as seen by member `me`.
/// Throws Error{unsupported} naming two nodes with unequal numbers of members; `pes` are the
/// members as numbered in the world.
Nodes make_nodes(std::span<const std::int32_t> domain_of, std::span<const Pe> pes, std::int32_t me);

}  // namespace shoal::ep::detail
