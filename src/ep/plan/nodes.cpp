// SPDX-License-Identifier: Apache-2.0
#include "ep/plan/nodes.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace shoal::ep::detail {

Nodes make_nodes(std::span<const std::int32_t> domain_of, std::span<const Pe> pes,
                 std::int32_t me) {
  const auto ranks = static_cast<std::int32_t>(domain_of.size());
  std::vector<std::int32_t> domains;               // node n has this domain
  std::vector<std::vector<std::int32_t>> on_node;  // ranks, ascending
  Nodes nodes;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    const auto known = std::find(domains.begin(), domains.end(), domain_of[rank]);
    const auto node = static_cast<std::int32_t>(known - domains.begin());
    if (known == domains.end()) {
      domains.push_back(domain_of[rank]);
      on_node.emplace_back();
    }
    nodes.node_of.push_back(node);
    nodes.rail_of.push_back(static_cast<std::int32_t>(on_node[node].size()));
    on_node[node].push_back(rank);
  }
  nodes.count = static_cast<std::int32_t>(on_node.size());
  nodes.size = static_cast<std::int32_t>(on_node.front().size());
  for (const auto& ranks_here : on_node) {
    require(
        ranks_here.size() == on_node.front().size(), Code::unsupported,
        "SHOAL-N600: an ep::Group needs equally many ranks on every node: {} share memory with PE "
        "{}, {} with PE {}",
        on_node.front().size(), pes[on_node.front().front()], ranks_here.size(),
        pes[ranks_here.front()]);
    nodes.ranks_by_node.insert(nodes.ranks_by_node.end(), ranks_here.begin(), ranks_here.end());
    for (std::int32_t rank = 0; rank < ranks; ++rank)
      nodes.before_on_node.push_back(static_cast<std::int32_t>(
          std::lower_bound(ranks_here.begin(), ranks_here.end(), rank) - ranks_here.begin()));
  }
  nodes.mine = nodes.node_of[me];
  nodes.rail = nodes.rail_of[me];
  return nodes;
}

}  // namespace shoal::ep::detail
