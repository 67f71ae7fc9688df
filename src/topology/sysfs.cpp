// SPDX-License-Identifier: Apache-2.0
#include "topology/sysfs.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <optional>
#include <set>

#include "base/check.hpp"

namespace shoal::topology {
namespace {

namespace fs = std::filesystem;

constexpr std::int32_t kArpEthernet = 1, kArpInfiniband = 32;

std::string line_of(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

/// The number at the start of a text: "400 Gb/sec (4X NDR)", "4: ACTIVE", "-1".
std::optional<std::int32_t> number_in(const std::string& text) {
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  return value;
}

std::optional<std::int32_t> number_of(const fs::path& file) {
  return number_in(line_of(file));
}

/// Entries of a directory by name; none if it does not exist.
std::vector<fs::path> entries(const fs::path& directory) {
  std::error_code error;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(directory, error)) found.push_back(entry.path());
  std::ranges::sort(found);
  return found;
}

/// .../devices/pci0000:15/0000:15:01.0/0000:18:00.0: the components after "devices" that are PCI.
Location location_of(const fs::path& device) {
  Location at;
  std::error_code error;
  const fs::path real = fs::canonical(device, error);
  if (error) return at;
  for (const fs::path& part : real) {
    const std::string name = part.string();
    if (name.starts_with("pci") && name.find(':') != std::string::npos) {
      at.path = {name};
    } else if (!at.path.empty()) {
      if (std::ranges::count(name, ':') != 2)
        break;  // virtio2 and similar devices are below their PCI device
      at.path.push_back(name);
    }
  }
  at.numa = number_of(real / "numa_node").value_or(-1);
  return at;
}

Nic& port_of(Machine& machine, const Nic& like) {
  const auto same = [&](const Nic& nic) {
    return nic.name == like.name && nic.port == like.port &&
           (nic.kind == Nic::Kind::rdma) == (like.kind == Nic::Kind::rdma);
  };
  const auto found = std::ranges::find_if(machine.nics, same);
  if (found != machine.nics.end()) {
    if (found->at.numa < 0) found->at.numa = like.at.numa;
    return *found;
  }
  return machine.nics.emplace_back(like);
}

/// The network of a port, as far as the port reports it.
std::string subnet_of(const fs::path& port) {
  const std::string layer = line_of(port / "link_layer");
  return layer == "InfiniBand" ? layer + " " + line_of(port / "gids/0").substr(0, 19) : layer;
}

void add_rdma(Machine& machine, const fs::path& root) {
  std::map<std::string, std::string> subnets;  // by label
  for (const fs::path& device : entries(root / "class/infiniband")) {
    Nic like;
    like.name = device.filename();
    like.at = location_of(device / "device");
    for (const fs::path& port : entries(device / "ports")) {
      like.port = number_in(port.filename().string()).value_or(1);
      Nic& nic = port_of(machine, like);
      nic.up = number_of(port / "state") == 4;
      nic.rate = number_of(port / "rate").value_or(0);
      if (nic.up) subnets[nic.label()] = subnet_of(port);
    }
  }
  std::set<std::string> planes;
  for (const auto& [label, subnet] : subnets) planes.insert(subnet);
  for (Nic& nic : machine.nics)
    if (const auto subnet = subnets.find(nic.label()); subnet != subnets.end()) {
      nic.plane =
          static_cast<std::int32_t>(std::distance(planes.begin(), planes.find(subnet->second)));
      nic.network = subnet->second;
    }
  for (const fs::path& device : entries(root / "class/cxi")) {
    Nic like;
    like.name = device.filename();
    like.at = location_of(device / "device");
    port_of(machine, like);
  }
}

void add_interfaces(Machine& machine, const fs::path& root) {
  for (const fs::path& interface : entries(root / "class/net")) {
    const auto type = number_of(interface / "type");
    if ((type != kArpEthernet && type != kArpInfiniband) || fs::exists(interface / "bridge"))
      continue;
    Nic like;
    like.name = interface.filename();
    like.at = location_of(interface / "device");
    like.kind = like.at.path.empty() ? Nic::Kind::software : Nic::Kind::network;
    Nic& nic = port_of(machine, like);
    // Drivers that do not monitor their carrier report "unknown".
    const std::string state = line_of(interface / "operstate");
    nic.up = state == "up" || state == "unknown";
    nic.rate = std::max(0, number_of(interface / "speed").value_or(0)) / 1000;
  }
}

}  // namespace

void complete_from_sysfs(Machine& machine, const fs::path& root) {
  for (Gpu& gpu : machine.gpus)
    if (gpu.at.numa < 0)
      gpu.at.numa =
          number_of(root / "bus/pci/devices" / gpu.at.path.back() / "numa_node").value_or(-1);
  add_rdma(machine, root);
  add_interfaces(machine, root);
}

}  // namespace shoal::topology
