// SPDX-License-Identifier: Apache-2.0
#include "info/topology.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "info/text.hpp"
#include "shoal/settings.hpp"

namespace shoal::info {
namespace {

using namespace shoal::topology;

constexpr std::string_view kKinds[] = {"RDMA device", "interface", "software interface"};

std::string kind_text(const Nic& nic) {
  return std::string(kKinds[static_cast<std::size_t>(nic.kind)]);
}

std::string numa_text(const Location& at) {
  return at.numa < 0 ? "NUMA ?" : fmt::format("NUMA {}", at.numa);
}

std::string rate_text(const Nic& nic) {
  return nic.rate > 0 ? fmt::format("{} Gb/s", nic.rate) : "rate ?";
}

std::string devices_text(const Machine& machine) {
  std::string text = fmt::format("GPUs: {}\n", machine.gpus.size());
  for (std::size_t i = 0; i < machine.gpus.size(); ++i)
    text += fmt::format("  GPU {:<10} {}  {}\n", i, machine.gpus[i].at.pci(),
                        numa_text(machine.gpus[i].at));
  text += fmt::format("NICs: {}\n", machine.nics.size());
  for (const Nic& nic : machine.nics)
    text += fmt::format("  {:<14} {:<12}  {}  {:>9}  plane {}  {:<4}  {}\n", nic.label(),
                        nic.at.pci(), numa_text(nic.at), rate_text(nic), nic.plane,
                        nic.up ? "up" : "down", kind_text(nic));
  return text;
}

struct Entry {
  std::string name;
  const Location* at;
};

std::vector<Entry> entries_of(const Machine& machine) {
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < machine.gpus.size(); ++i)
    entries.push_back({fmt::format("GPU {}", i), &machine.gpus[i].at});
  for (const Nic& nic : machine.nics) entries.push_back({nic.label(), &nic.at});
  return entries;
}

/// "NV18" for GPUs that links join, else the distance over PCIe.
std::string shown_distance(const Topology& topology, const Entry& a, const Entry& b) {
  const std::int32_t links = links_between(topology.nvlinks, a.at->pci(), b.at->pci());
  return links > 0 ? fmt::format("NV{}", links) : std::string(name_of(distance(*a.at, *b.at)));
}

std::string distances_text(const Topology& topology) {
  const std::vector<Entry> entries = entries_of(topology.machine);
  if (entries.size() < 2) return "";
  std::size_t width = 5;
  for (const Entry& entry : entries) width = std::max(width, entry.name.size() + 1);
  std::string text = fmt::format(
      "Distances (PIX: one PCIe switch, PXB: several, PHB: a host bridge, NODE: several of one NUMA node, SYS: "
      "between NUMA nodes, NVn: n NVLink links, direct or through switches):\n  {:{}}",
      "", width);
  for (const Entry& column : entries) text += fmt::format("{:<{}}", column.name, width);
  text += "\n";
  for (const Entry& row : entries) {
    text += fmt::format("  {:<{}}", row.name, width);
    for (const Entry& column : entries)
      text += fmt::format("{:<{}}", &row == &column ? "-" : shown_distance(topology, row, column),
                          width);
    text += "\n";
  }
  return text;
}

std::string tree_line(const Topology& topology, const TreeNode& node) {
  if (node.kind == TreeNode::Kind::gpu) {
    const auto& at = topology.machine.gpus[static_cast<std::size_t>(node.index)].at;
    std::vector<std::string> nics;
    for (const NicUse& use : topology.plan.of_seat[static_cast<std::size_t>(node.index)])
      nics.push_back(topology.machine.nics[static_cast<std::size_t>(use.nic)].label());
    return fmt::format("{}  {}{}", node.label, at.pci(),
                       nics.empty() ? "  no NIC" : fmt::format("  uses {}", fmt::join(nics, ", ")));
  }
  if (node.kind == TreeNode::Kind::nic) {
    const Nic& nic = topology.machine.nics[static_cast<std::size_t>(node.index)];
    return fmt::format("{}  {}{}{}", node.label, nic.at.pci(), nic.at.path.empty() ? "" : "  ",
                       nic.up ? rate_text(nic) : "down");
  }
  return node.label;
}

void draw(const Topology& topology, const TreeNode& node, const std::string& indent,
          std::string& text) {
  for (std::size_t i = 0; i < node.children.size(); ++i) {
    const bool last = i + 1 == node.children.size();
    text += fmt::format("{}{}{}\n", indent, last ? "└─ " : "├─ ",
                        tree_line(topology, node.children[i]));
    draw(topology, node.children[i], indent + (last ? "   " : "│  "), text);
  }
}

std::string picture_text(const Topology& topology) {
  const TreeNode tree = tree_of(topology.machine);
  if (tree.children.empty()) return "";
  std::string text = "Picture (as SVG: --svg FILE):\n  machine\n";
  draw(topology, tree, "  ", text);
  return text;
}

std::string plan_text(const Topology& topology) {
  const Machine& machine = topology.machine;
  const NicPlan& plan = topology.plan;
  std::string text = fmt::format(
      "NIC plan, {}; it covers the whole host, independent of jobs and teams:\n", plan.rule);
  for (std::size_t seat = 0; seat < topology.seats.size(); ++seat) {
    std::vector<std::string> nics;
    for (const NicUse& use : plan.of_seat[seat])
      nics.push_back(fmt::format("{} ({})", machine.nics[static_cast<std::size_t>(use.nic)].label(),
                                 name_of(use.distance)));
    text +=
        fmt::format("  {} {}: {}\n", machine.gpus.empty() ? "PE with local index" : "PEs on GPU",
                    seat, nics.empty() ? "none" : fmt::format("{}", fmt::join(nics, ", ")));
  }
  for (std::size_t nic = 0; nic < machine.nics.size(); ++nic)
    if (!plan.unused[nic].empty())
      text += fmt::format("  not used: {}: {}\n", machine.nics[nic].label(), plan.unused[nic]);
  if (topology.local_index >= 0)
    text += fmt::format(
        "  a PE with a heap in host memory and SHOAL_LOCAL_INDEX={} uses the NICs of {}\n",
        topology.local_index,
        seat_of(machine, static_cast<std::int32_t>(topology.seats.size()), "",
                topology.local_index));
  for (const std::string& remark : topology.remarks) text += fmt::format("Note: {}\n", remark);
  return text;
}

}  // namespace

Topology collect_topology(const std::string& machine_file, std::int32_t pes) {
  const Settings settings = Settings::from_environment();
  Topology topology;
  topology.name = machine_file.empty() ? "this one" : machine_file;
  topology.machine = machine_file.empty() ? read_machine() : read_machine(machine_file);
  topology.seats =
      host_seats(topology.machine, pes > 0 ? pes : static_cast<std::int32_t>(settings.local_size));
  topology.plan = plan_nics(topology.machine, topology.seats, nic_binding(settings));
  topology.remarks = remarks(topology.machine, topology.seats, topology.plan);
  topology.local_index = static_cast<std::int32_t>(settings.local_index);
  if (machine_file.empty()) {
    std::vector<std::string> gpus;
    for (const Gpu& gpu : topology.machine.gpus) gpus.emplace_back(gpu.at.pci());
    topology.nvlinks = read_nvlinks(gpus);
  }
  return topology;
}

std::string seat_name(const Topology& topology, std::size_t seat) {
  return fmt::format("{} {}", topology.machine.gpus.empty() ? "PE" : "GPU", seat);
}

std::vector<std::int32_t> users_of(const Topology& topology, std::size_t nic) {
  std::vector<std::int32_t> users;
  for (std::size_t seat = 0; seat < topology.plan.of_seat.size(); ++seat)
    for (const NicUse& use : topology.plan.of_seat[seat])
      if (use.nic == static_cast<std::int32_t>(nic))
        users.push_back(static_cast<std::int32_t>(seat));
  return users;
}

std::string to_text(const Topology& topology) {
  return fmt::format("Machine: {}, NUMA nodes: {}\n", topology.name, topology.machine.numa_nodes) +
         devices_text(topology.machine) + distances_text(topology) + picture_text(topology) +
         plan_text(topology);
}

nlohmann::json to_json(const Topology& topology) {
  using nlohmann::json;
  const Machine& machine = topology.machine;
  json gpus = json::array(), nics = json::array(), distances = json::array(), seats = json::array();
  for (const Gpu& gpu : machine.gpus)
    gpus.push_back({{"pci", gpu.at.pci()}, {"numa", gpu.at.numa}});
  for (std::size_t i = 0; i < machine.nics.size(); ++i) {
    const Nic& nic = machine.nics[i];
    nics.push_back({{"name", nic.name},
                    {"port", nic.port},
                    {"label", nic.label()},
                    {"kind", kind_text(nic)},
                    {"pci", nic.at.pci()},
                    {"numa", nic.at.numa},
                    {"rate_gbit", nic.rate},
                    {"plane", nic.plane},
                    {"up", nic.up},
                    {"not_used", topology.plan.unused[i]}});
  }
  for (const Entry& row : entries_of(machine))
    for (const Entry& column : entries_of(machine))
      if (row.name != column.name)
        distances.push_back(
            {{"from", row.name},
             {"to", column.name},
             {"distance", name_of(distance(*row.at, *column.at))},
             {"nvlinks", links_between(topology.nvlinks, row.at->pci(), column.at->pci())}});
  for (std::size_t seat = 0; seat < topology.seats.size(); ++seat) {
    json uses = json::array();
    for (const NicUse& use : topology.plan.of_seat[seat])
      uses.push_back({{"nic", machine.nics[static_cast<std::size_t>(use.nic)].label()},
                      {"distance", name_of(use.distance)}});
    seats.push_back({{"seat", seat}, {"name", seat_name(topology, seat)}, {"nics", uses}});
  }
  return {{"machine", topology.name},
          {"numa_nodes", machine.numa_nodes},
          {"gpus", gpus},
          {"nics", nics},
          {"distances", distances},
          {"rule", topology.plan.rule},
          {"seats", seats},
          {"remarks", topology.remarks}};
}

}  // namespace shoal::info
