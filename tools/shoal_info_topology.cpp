#include "shoal_info_topology.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "shoal/settings.hpp"
#include "topology/nic_plan.hpp"

namespace {

using namespace shoal::topology;

std::string numa_text(const Location& at) {
  return at.numa < 0 ? "NUMA ?" : fmt::format("NUMA {}", at.numa);
}

void print_devices(const Machine& machine) {
  fmt::print("GPUs: {}\n", machine.gpus.size());
  for (std::size_t i = 0; i < machine.gpus.size(); ++i)
    fmt::print("  GPU {:<10} {}  {}\n", i, machine.gpus[i].at.pci(), numa_text(machine.gpus[i].at));
  fmt::print("NICs: {}\n", machine.nics.size());
  constexpr std::string_view kinds[] = {"RDMA device", "interface", "software interface"};
  for (const Nic& nic : machine.nics)
    fmt::print("  {:<14} {:<12}  {}  {:>9}  plane {}  {:<4}  {}\n", nic.label(), nic.at.pci(), numa_text(nic.at),
               nic.rate > 0 ? fmt::format("{} Gb/s", nic.rate) : "rate ?", nic.plane, nic.up ? "up" : "down",
               kinds[static_cast<std::size_t>(nic.kind)]);
}

void print_distances(const Machine& machine) {
  struct Entry {
    std::string name;
    const Location* at;
  };
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < machine.gpus.size(); ++i)
    entries.push_back({fmt::format("GPU {}", i), &machine.gpus[i].at});
  for (const Nic& nic : machine.nics) entries.push_back({nic.label(), &nic.at});
  if (entries.size() < 2) return;
  std::size_t width = 5;
  for (const Entry& entry : entries) width = std::max(width, entry.name.size() + 1);
  fmt::print(
      "Distances (PIX: one PCIe switch, PXB: several, PHB: a host bridge, NODE: several of one NUMA node, SYS: "
      "between NUMA nodes):\n  {:{}}",
      "", width);
  for (const Entry& column : entries) fmt::print("{:<{}}", column.name, width);
  fmt::print("\n");
  for (const Entry& row : entries) {
    fmt::print("  {:<{}}", row.name, width);
    for (const Entry& column : entries)
      fmt::print("{:<{}}", &row == &column ? "-" : name_of(distance(*row.at, *column.at)), width);
    fmt::print("\n");
  }
}

}  // namespace

void print_topology(const std::string& machine_file, std::int32_t pes) {
  const shoal::Settings settings = shoal::Settings::from_environment();
  const Machine machine = machine_file.empty() ? read_machine() : read_machine(machine_file);
  fmt::print("Machine: {}, NUMA nodes: {}\n", machine_file.empty() ? "this one" : machine_file, machine.numa_nodes);
  print_devices(machine);
  print_distances(machine);

  const std::vector<Location> seats =
      host_seats(machine, pes > 0 ? pes : static_cast<std::int32_t>(settings.local_size));
  const NicPlan plan = plan_nics(machine, seats, nic_binding(settings));
  fmt::print("NIC plan, {}; for the whole host, whatever jobs and teams run on it:\n", plan.rule);
  for (std::size_t seat = 0; seat < seats.size(); ++seat) {
    std::vector<std::string> nics;
    for (const NicUse& use : plan.of_seat[seat])
      nics.push_back(
          fmt::format("{} ({})", machine.nics[static_cast<std::size_t>(use.nic)].label(), name_of(use.distance)));
    fmt::print("  {} {}: {}\n", machine.gpus.empty() ? "PE with local index" : "PEs on GPU", seat,
               nics.empty() ? "none" : fmt::format("{}", fmt::join(nics, ", ")));
  }
  for (std::size_t nic = 0; nic < machine.nics.size(); ++nic)
    if (!plan.unused[nic].empty()) fmt::print("  not used: {}: {}\n", machine.nics[nic].label(), plan.unused[nic]);
  if (settings.local_index >= 0)
    fmt::print(
        "  a PE with a heap in host memory and SHOAL_LOCAL_INDEX={} uses those of {}\n", settings.local_index,
        seat_of(machine, static_cast<std::int32_t>(seats.size()), "", static_cast<std::int32_t>(settings.local_index)));
  for (const std::string& remark : remarks(machine, seats, plan)) fmt::print("Note: {}\n", remark);
}
