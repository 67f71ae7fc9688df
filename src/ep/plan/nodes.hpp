// SPDX-License-Identifier: Apache-2.0
// nodes.hpp: the nodes of a group (ranks that share memory) and its rails between nodes. Pure.
//
// A node consists of the ranks that reach each other by load and store, as the world's connectivity
// reports. Ranks with the same index on their nodes form a rail. Traffic between
// nodes follows rails.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shoal/heap.hpp"

namespace shoal::ep::detail {

struct Nodes {
  std::int32_t count = 1;                    ///< number of nodes
  std::int32_t size = 1;                     ///< ranks per node
  std::int32_t mine = 0;                     ///< the node of this rank
  std::int32_t rail = 0;                     ///< the index of this rank on its node
  std::vector<std::int32_t> node_of;         ///< by rank
  std::vector<std::int32_t> rail_of;         ///< by rank
  std::vector<std::int32_t> ranks_by_node;   ///< [count][size]
  std::vector<std::int32_t> before_on_node;  ///< [count][ranks]: lower ranks on that node

  std::int32_t rank_at(std::int32_t node, std::int32_t index) const {
    return ranks_by_node[node * size + index];
  }
  std::int32_t rail_peer(std::int32_t node) const { return rank_at(node, rail); }
  /// True if a rank is local: on the node of this rank.
  bool here(std::int32_t rank) const { return node_of[rank] == mine; }
  std::int32_t ranks() const { return static_cast<std::int32_t>(node_of.size()); }
  /// Position of `other` among the ranks that are not on the node of `owner`, ascending.
  std::int32_t remote_index(std::int32_t owner, std::int32_t other) const {
    return other - before_on_node[node_of[owner] * ranks() + other];
  }
};

/// From the domain of every rank (equal numbers: loads and stores reach), as seen by rank `me`.
/// `pes` are the ranks' PEs, for messages. Throws Error{unsupported} naming two nodes with unequal
/// numbers of ranks.
Nodes make_nodes(std::span<const std::int32_t> domain_of, std::span<const Pe> pes, std::int32_t me);

}  // namespace shoal::ep::detail
