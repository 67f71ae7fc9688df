// SPDX-License-Identifier: Apache-2.0
// The machine as a tree of NUMA nodes, host bridges, switches and devices.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "info/topology.hpp"

namespace shoal::info {
namespace {

using topology::Location;
using Kind = TreeNode::Kind;

TreeNode& child(TreeNode& parent, Kind kind, const std::string& label) {
  const auto found =
      std::find_if(parent.children.begin(), parent.children.end(),
                   [&](const TreeNode& node) { return node.kind == kind && node.label == label; });
  if (found != parent.children.end()) return *found;
  return parent.children.emplace_back(TreeNode{kind, label, -1, "", {}});
}

void insert(TreeNode& machine, const Location& at, TreeNode device) {
  const bool nowhere = at.path.empty() && at.numa < 0;
  TreeNode* parent = &child(machine, Kind::numa,
                            nowhere        ? "no PCI device"
                            : at.numa >= 0 ? fmt::format("NUMA node {}", at.numa)
                                           : "NUMA node not known");
  for (std::size_t i = 0; i + 1 < at.path.size(); ++i)
    parent = &child(*parent, Kind::bridge, at.path[i]);
  parent->children.push_back(std::move(device));
}

bool is_host_bridge(const TreeNode& node) {
  return node.kind == Kind::bridge && node.label.starts_with("pci");
}

/// True if all children are functions of one PCI device, under any name.
bool is_port_of_device(const TreeNode& node) {
  const auto card = [](const TreeNode& below) { return below.pci.substr(0, below.pci.rfind('.')); };
  return std::all_of(node.children.begin(), node.children.end(), [&](const TreeNode& below) {
    return below.kind != Kind::bridge && card(below) == card(node.children.front());
  });
}

/// Returns the nodes that replace `node` below `host_bridge`. Drops ports of switches, and bridges
/// between a host bridge and its only switch. Devices of a port replace the port.
std::vector<TreeNode> without_chains(TreeNode node, const std::string& host_bridge) {
  const std::string root = is_host_bridge(node) ? node.label : host_bridge;
  std::vector<TreeNode> children;
  for (TreeNode& below : node.children)
    for (TreeNode& kept : without_chains(std::move(below), root))
      children.push_back(std::move(kept));
  node.children = std::move(children);
  if (node.kind == Kind::bridge) {
    const bool one_bridge = node.children.size() == 1 && node.children.front().kind == Kind::bridge;
    if (one_bridge || (!is_host_bridge(node) && is_port_of_device(node)))
      return std::move(node.children);
    node.label = is_host_bridge(node)
                     ? fmt::format("host bridge {}", node.label)
                     : fmt::format("PCIe switch {} on {}", node.label, host_bridge);
  }
  std::vector<TreeNode> result;
  result.push_back(std::move(node));
  return result;
}

}  // namespace

TreeNode tree_of(const topology::Machine& machine) {
  TreeNode tree{Kind::machine, "machine", -1, "", {}};
  for (std::size_t i = 0; i < machine.gpus.size(); ++i)
    insert(tree, machine.gpus[i].at,
           {Kind::gpu,
            fmt::format("GPU {}", i),
            static_cast<std::int32_t>(i),
            std::string(machine.gpus[i].at.pci()),
            {}});
  for (std::size_t i = 0; i < machine.nics.size(); ++i)
    insert(tree, machine.nics[i].at,
           {Kind::nic,
            machine.nics[i].label(),
            static_cast<std::int32_t>(i),
            std::string(machine.nics[i].at.pci()),
            {}});
  std::stable_sort(tree.children.begin(), tree.children.end(),
                   [](const TreeNode& a, const TreeNode& b) {
                     const auto rank = [](const TreeNode& node) {
                       return std::pair(!node.label.starts_with("NUMA node") ? 2
                                        : node.label.ends_with("known")      ? 1
                                                                             : 0,
                                        node.label);
                     };
                     return rank(a) < rank(b);
                   });
  return without_chains(std::move(tree), "").front();
}

}  // namespace shoal::info
