// SPDX-License-Identifier: Apache-2.0
// The machine as hwloc sees it, live or from a file. No other file includes hwloc.
#include <hwloc.h>

#include <charconv>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/check.hpp"
#include "topology/machine.hpp"
#include "topology/sysfs.hpp"

namespace shoal::topology {
namespace {

constexpr unsigned kNvidia = 0x10de;
constexpr unsigned kDisplayClass = 0x03;

using Topology = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;

Topology make_topology() {
  hwloc_topology_t topology = nullptr;
  require(hwloc_topology_init(&topology) == 0, Code::system,
          "SHOAL-N221: hwloc could not be initialised");
  Topology owner(topology, hwloc_topology_destroy);
  hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_ALL);
  // These plug-ins create GPU contexts and open displays. "pci" leaks memory; sysfs has the same
  // facts.
  for (const char* component : {"pci", "cuda", "nvml", "opencl", "rsmi", "levelzero", "gl"})
    hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  return owner;
}

std::string address_of(const hwloc_obj_attr_u::hwloc_pcidev_attr_s& pci) {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", unsigned{pci.domain}, pci.bus, pci.dev, pci.func);
}

Location location_of(hwloc_topology_t topology, hwloc_obj_t device) {
  Location at;
  for (hwloc_obj_t object = device; object != nullptr; object = object->parent) {
    if (object->type == HWLOC_OBJ_PCI_DEVICE) {
      at.path.push_back(address_of(object->attr->pcidev));
    } else if (object->type == HWLOC_OBJ_BRIDGE) {
      const auto& bridge = object->attr->bridge;
      at.path.push_back(bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI
                            ? address_of(bridge.upstream.pci)
                            : fmt::format("pci{:04x}:{:02x}",
                                          unsigned{bridge.downstream.pci.domain},
                                          bridge.downstream.pci.secondary_bus));
    }
  }
  at.path = {at.path.rbegin(), at.path.rend()};
  hwloc_obj_t local = hwloc_get_non_io_ancestor_obj(topology, device);
  if (local != nullptr && local->nodeset != nullptr && hwloc_bitmap_weight(local->nodeset) == 1)
    at.numa = hwloc_bitmap_first(local->nodeset);
  return at;
}

std::optional<std::int32_t> number_info(hwloc_obj_t object, const std::string& name) {
  const char* const text = hwloc_obj_get_info_by_name(object, name.c_str());
  if (text == nullptr) return std::nullopt;
  const std::string_view view = text;
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  require(error == std::errc{} && end == view.data() + view.size() && value >= 0,
          Code::invalid_argument, "SHOAL-N222: {} of {} is \"{}\"; allowed: a number from 0", name,
          object->name, view);
  return value;
}

void add_ports(Machine& machine, const Nic& device, hwloc_obj_t object) {
  for (std::int32_t port = 1;; ++port) {
    const std::string prefix = fmt::format("Port{}", port);
    const auto state = number_info(object, prefix + "State");
    if (port > 1 && !state) return;
    Nic nic = device;
    nic.port = port;
    nic.up = state.value_or(4) == 4;  // 4: active, as in the specification of InfiniBand
    nic.rate = number_info(object, prefix + "Rate").value_or(0);
    const auto plane = number_info(object, prefix + "Plane");
    nic.plane = plane.value_or(0);
    if (plane) nic.network = fmt::format("plane {}", *plane);
    machine.nics.push_back(nic);
    if (device.kind != Nic::Kind::rdma) return;
  }
}

Machine machine_of(hwloc_topology_t topology) {
  Machine machine;
  machine.numa_nodes = std::max(1, hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE));
  for (hwloc_obj_t pci = nullptr; (pci = hwloc_get_next_pcidev(topology, pci)) != nullptr;) {
    const auto& attributes = pci->attr->pcidev;
    if (attributes.vendor_id == kNvidia && attributes.class_id >> 8 == kDisplayClass)
      machine.gpus.push_back({location_of(topology, pci)});
  }
  for (hwloc_obj_t device = nullptr;
       (device = hwloc_get_next_osdev(topology, device)) != nullptr;) {
    const hwloc_obj_osdev_type_t type = device->attr->osdev.type;
    if (device->name == nullptr ||
        (type != HWLOC_OBJ_OSDEV_OPENFABRICS && type != HWLOC_OBJ_OSDEV_NETWORK))
      continue;
    Nic nic;
    nic.name = device->name;
    nic.at = location_of(topology, device);
    nic.kind = type == HWLOC_OBJ_OSDEV_OPENFABRICS ? Nic::Kind::rdma
               : nic.at.path.empty()               ? Nic::Kind::software
                                                   : Nic::Kind::network;
    add_ports(machine, nic, device);
  }
  return machine;
}

}  // namespace

Machine read_machine() {
  // hwloc calls libudev, which is not thread-safe, and PEs may be threads.
  static std::mutex reading;
  const std::lock_guard lock(reading);
  const Topology topology = make_topology();
  require(hwloc_topology_load(topology.get()) == 0, Code::system,
          "SHOAL-N221: hwloc could not read this machine");
  Machine machine = machine_of(topology.get());
  // HWLOC_XMLFILE may replace this machine by a described one.
  if (hwloc_topology_is_thissystem(topology.get()) != 0) complete_from_sysfs(machine, "/sys");
  put_in_order(machine);
  return machine;
}

Machine read_machine(const std::string& xml_file) {
  const Topology topology = make_topology();
  const bool read = hwloc_topology_set_xml(topology.get(), xml_file.c_str()) == 0 &&
                    hwloc_topology_load(topology.get()) == 0;
  require(
      read, Code::invalid_argument,
      "SHOAL-N222: {} does not describe a machine; allowed: a file that hwloc can read, such as "
      "lstopo writes (lstopo machine.xml)",
      xml_file);
  Machine machine = machine_of(topology.get());
  put_in_order(machine);
  return machine;
}

}  // namespace shoal::topology
