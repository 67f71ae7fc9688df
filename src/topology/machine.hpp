// SPDX-License-Identifier: Apache-2.0
// machine.hpp: GPUs and NICs of a host, and the distances between them.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::topology {

/// Path between two devices. A smaller value is nearer.
enum class Distance : std::uint8_t {
  pix,   ///< at most one PCIe switch
  pxb,   ///< several PCIe switches
  phb,   ///< a host bridge
  node,  ///< several host bridges of one NUMA node
  sys,   ///< the link between NUMA nodes, or not known
};

/// "PIX", "PXB", "PHB", "NODE", "SYS".
std::string_view name_of(Distance distance) noexcept;

/// Location of a device or a PE.
struct Location {
  /// From the processor to the device: the host bridge ("pci0000:15"), the PCI addresses of the
  /// bridges below it, the address of the device. Empty if it is not a PCI device.
  std::vector<std::string> path;
  std::int32_t numa = -1;  ///< NUMA node; -1: not known

  std::string_view pci() const noexcept { return path.empty() ? std::string_view() : path.back(); }
  auto operator<=>(const Location&) const = default;
};

struct Gpu {
  Location at;
};

/// One port of a network device, the unit that is assigned to PEs.
struct Nic {
  enum class Kind : std::uint8_t {
    rdma,      ///< an RDMA device (HCA)
    network,   ///< a network interface of a PCI device
    software,  ///< a network interface without one, such as a veth pair
  };
  std::string name;       ///< mlx5_0, eth0
  std::int32_t port = 1;  ///< 1 if the device has no ports
  Kind kind = Kind::rdma;
  Location at;
  std::int32_t rate = 0;  ///< Gb/s; 0: not known
  /// Ports of different planes do not reach each other; numbered within this machine.
  std::int32_t plane = 0;
  bool up = true;
  /// Name of the plane, valid on all hosts; empty: not known.
  std::string network{};

  /// "mlx5_0:1" for RDMA devices, else the name.
  std::string label() const;
};

struct Machine {
  std::vector<Gpu> gpus;  ///< by ascending PCI address, as with CUDA_DEVICE_ORDER=PCI_BUS_ID
  std::vector<Nic> nics;  ///< RDMA devices first; by PCI address, name, port
  std::int32_t numa_nodes = 1;
};

/// Symmetric. Devices whose NUMA nodes are not known and that share no host bridge are `sys` apart.
Distance distance(const Location& a, const Location& b) noexcept;

/// "0000:19:00.0" for "0000:19:00.0", "00000000:19:00.0" and "19:00.0", in upper or lower case.
/// Throws Error{invalid_argument} for anything else.
std::string normal_pci_address(std::string_view text);

/// Sorts GPUs and NICs as Machine documents. With one NUMA node, every device is on it.
void put_in_order(Machine& machine);

/// The machine that this process runs on, from hwloc and sysfs. Throws Error{system} if hwloc
/// fails.
Machine read_machine();

/// A described machine: an XML file of hwloc (lstopo machine.xml) or one written by hand. In
/// addition to hwloc's info attributes of RDMA devices (Port1State...) it may have Port<n>Rate in
/// Gb/s and Port<n>Plane. Throws Error{invalid_argument} naming the file when hwloc cannot read it.
Machine read_machine(const std::string& xml_file);

}  // namespace shoal::topology
