// SPDX-License-Identifier: Apache-2.0
// topology.hpp: this machine or a described one: devices, distances, the NICs of every PE.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "topology/nic_plan.hpp"

namespace shoal::info {

struct Topology {
  std::string name;  ///< "this one", or the file that describes it
  topology::Machine machine;
  std::vector<topology::Location> seats;
  topology::NicPlan plan;
  std::vector<std::string> remarks;
  std::int32_t local_index = -1;  ///< SHOAL_LOCAL_INDEX
};

/// `machine_file` as SHOAL's described machines (docs/internals/topology.md), empty: this machine. `pes`: of
/// all jobs on a host without GPUs, 0: SHOAL_LOCAL_SIZE. Throws like read_machine and plan_nics.
Topology collect_topology(const std::string& machine_file, std::int32_t pes);
std::string to_text(const Topology& topology);
nlohmann::json to_json(const Topology& topology);

/// The picture as an SVG document: NUMA nodes, switches, GPUs and NICs; every seat has a colour,
/// which its NICs bear.
std::string to_svg(const Topology& topology);

/// "PE" with its number where there are no GPUs, else "GPU" with its number.
std::string seat_name(const Topology& topology, std::size_t seat);

/// The machine as a tree, for pictures.
struct TreeNode {
  enum class Kind : std::uint8_t { machine, numa, bridge, gpu, nic };
  Kind kind = Kind::machine;
  std::string label;
  std::int32_t index = -1;  ///< of Machine::gpus or Machine::nics
  std::string pci;          ///< address of a device
  std::vector<TreeNode> children;
};

/// Bridges that branch nowhere are left out, so that what remains are switches and host bridges.
/// NUMA nodes ascending, devices that have no known place last.
TreeNode tree_of(const topology::Machine& machine);

/// The seats that use NIC `nic`, ascending.
std::vector<std::int32_t> users_of(const Topology& topology, std::size_t nic);

}  // namespace shoal::info
