// SPDX-License-Identifier: Apache-2.0
#include "ep/plan/nodes.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace shoal::ep::detail {

Nodes make_nodes(std::span<const std::int32_t> domain_of, std::span<const Pe> pes,
                 std::int32_t me) {
  const auto ranks = static_cast<std::int32_t>(domain_of.size());
  std::vector<std::int32_t> domains;               // node n has this domain
  std::vector<std::vector<std::int32_t>> on_node;  // members, ascending
  Nodes nodes;
  for (std::int32_t member = 0; member < ranks; ++member) {
    const auto known = std::find(domains.begin(), domains.end(), domain_of[member]);
    const auto node = static_cast<std::int32_t>(known - domains.begin());
    if (known == domains.end()) {
      domains.push_back(domain_of[member]);
      on_node.emplace_back();
    }
    nodes.node_of.push_back(node);
    nodes.rail_of.push_back(static_cast<std::int32_t>(on_node[node].size()));
    on_node[node].push_back(member);
  }
  nodes.count = static_cast<std::int32_t>(on_node.size());
  nodes.size = static_cast<std::int32_t>(on_node.front().size());
  for (const auto& members : on_node) {
    require(
        members.size() == on_node.front().size(), Code::unsupported,
        "an ep::Group needs equally many members on every node: {} share memory with PE {}, {} with PE {}",
        on_node.front().size(), pes[on_node.front().front()], members.size(), pes[members.front()]);
    nodes.members.insert(nodes.members.end(), members.begin(), members.end());
    for (std::int32_t member = 0; member < ranks; ++member)
      nodes.before_on_node.push_back(static_cast<std::int32_t>(
          std::lower_bound(members.begin(), members.end(), member) - members.begin()));
  }
  nodes.mine = nodes.node_of[me];
  nodes.rail = nodes.rail_of[me];
  return nodes;
}

}  // namespace shoal::ep::detail
