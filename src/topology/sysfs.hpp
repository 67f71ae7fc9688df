// SPDX-License-Identifier: Apache-2.0
// sysfs.hpp: facts about network ports that hwloc does not report.
#pragma once

#include <filesystem>

#include "topology/machine.hpp"

namespace shoal::topology {

/// Completes `machine` from the sysfs mounted at `root`: state, rate and plane of ports of RDMA
/// devices and network interfaces; interfaces without a PCI device (veth, but no loopback or
/// bridges); RDMA and Slingshot devices and NUMA nodes that hwloc missed. Planes are numbered by
/// link layer and, for InfiniBand, by subnet prefix. Values that cannot be read stay unchanged.
void complete_from_sysfs(Machine& machine, const std::filesystem::path& root);

}  // namespace shoal::topology
