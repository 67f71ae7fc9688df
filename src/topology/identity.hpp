// SPDX-License-Identifier: Apache-2.0
// identity.hpp: which PEs share a host, and which nodes PEs are on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shoal/heap.hpp"

namespace shoal::topology {

/// Identity of a host. Equal `id` means the same host. `name` is for messages; hosts may share it.
/// `network`: the network namespace on the host; containers of one host mostly have one each. Empty
/// where it cannot be read.
struct HostIdentity {
  std::string id;
  std::string name;
  std::string network = {};
};

/// Machine id and boot id of this host, or `override_id` (SHOAL_HOST_ID) if that is not empty.
/// Cloned images share the machine id, and host names are not unique. Throws Error{system} when
/// neither id can be read, naming SHOAL_HOST_ID.
HostIdentity read_host_identity(const std::string& override_id);

/// Hosts and nodes of the PEs of a world. A node is a host, or a part of one if SHOAL_NODE_SIZE
/// splits hosts.
struct HostMap {
  std::vector<std::int32_t> host_of;  ///< host number of each PE, numbered by first appearance
  /// Likewise, of network namespaces: PEs with equal numbers share a loopback interface.
  std::vector<std::int32_t> network_of;
  std::vector<std::int32_t> node_of;  ///< node number of each PE
  std::vector<Pe> index_on_node;      ///< index of each PE on its node, in ascending PE order
  std::vector<Pe> index_on_host;  ///< the same on its host: resources of a host are assigned by it
  std::vector<std::vector<Pe>> nodes;  ///< PEs of each node, ascending
  std::int32_t pes_per_node = 0;       ///< equal on all nodes
};

/// Places PE i on hosts[i]. The distribution is free: block, round-robin or any other. Throws
/// Error{invalid_argument} when hosts have unequal numbers of PEs, or when `node_size` (0: no
/// split) does not divide that number.
HostMap place(std::span<const HostIdentity> hosts, std::int64_t node_size);

}  // namespace shoal::topology
