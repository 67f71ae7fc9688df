// SPDX-License-Identifier: Apache-2.0
// sysfs.hpp: what the kernel says about network ports and hwloc does not.
#pragma once

#include <filesystem>

#include "topology/machine.hpp"

namespace shoal::topology {

/// Adds to `machine` from the sysfs that is mounted at `root`: state, rate and plane of the ports
/// of RDMA devices and network interfaces; interfaces without a PCI device (veth; no loopback, no
/// bridges); RDMA and Slingshot devices and NUMA nodes that hwloc missed. Planes are numbered by
/// link layer and, for InfiniBand, subnet prefix, which tells separate subnets apart. Anything that
/// cannot be read stays as it was.
void complete_from_sysfs(Machine& machine, const std::filesystem::path& root);

}  // namespace shoal::topology
