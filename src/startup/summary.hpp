// SPDX-License-Identifier: Apache-2.0
// summary.hpp: what a world reports in the log when it is open (SHOAL_LOG=info).
#pragma once

#include <string>

#include "shoal/settings.hpp"

namespace shoal::detail {

class Fabric;
class Memory;
struct Placement;

/// "Shoal 0.1.0 (protocol 9): 8 PEs on 2 hosts, 4 per node; heap of 1073741824 bytes per PE in host
/// memory; ...". The same on all PEs.
std::string describe_world(const Placement& placement, const Memory& memory,
                           const Settings& settings);

/// "PE 3 on node 0: transports self (1 PE), shm (3), ofi (4); NICs mlx5_0:1".
std::string describe_pe(const Placement& placement, const Fabric& fabric);

/// Logs both at level info, the first on PE 0 alone, and on PE 0 the warnings about variables of
/// the environment that have no effect.
void log_summary(const Placement& placement, const Memory& memory, const Fabric& fabric,
                 const Settings& settings);

}  // namespace shoal::detail
