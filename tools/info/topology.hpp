// SPDX-License-Identifier: Apache-2.0
// topology.hpp: devices, distances and the NICs of every PE, of this machine or a described one.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "topology/nic_plan.hpp"
#include "topology/nvlink.hpp"

namespace shoal::info {

struct Topology {
  std::string name;  ///< "this one", or the file with the description
  topology::Machine machine;
  std::vector<topology::Location> seats;
  topology::NicPlan plan;
  std::vector<std::string> remarks;
  std::int32_t local_index = -1;  ///< SHOAL_LOCAL_INDEX
  topology::NvLinks nvlinks{};    ///< of this machine; empty for a described one
};

/// Reads the machine in `machine_file` (docs/internals/topology.md), or this machine if it is
/// empty. `pes` counts the PEs of all jobs on a host without GPUs; 0 means SHOAL_LOCAL_SIZE. Throws
/// like read_machine and plan_nics.
Topology collect_topology(const std::string& machine_file, std::int32_t pes);
std::string to_text(const Topology& topology);
nlohmann::json to_json(const Topology& topology);

/// The picture as an SVG document: NUMA nodes, switches, GPUs and NICs. Every seat has a colour,
/// shown on its NICs.
std::string to_svg(const Topology& topology);

/// "PE n" on a machine without GPUs, else "GPU n".
std::string seat_name(const Topology& topology, std::size_t seat);

/// The machine as a tree, for pictures.
struct TreeNode {
  enum class Kind : std::uint8_t { machine, numa, bridge, gpu, nic };
  Kind kind = Kind::machine;
  std::string label;
  std::int32_t index = -1;  ///< in Machine::gpus or Machine::nics
  std::string pci;          ///< PCI address of a device
  std::vector<TreeNode> children;
};

/// Omits bridges with one child, so switches and host bridges remain. NUMA nodes are in ascending
/// order; devices without a known place are last.
TreeNode tree_of(const topology::Machine& machine);

/// The seats that use NIC `nic`, ascending.
std::vector<std::int32_t> users_of(const Topology& topology, std::size_t nic);

}  // namespace shoal::info
