// SPDX-License-Identifier: Apache-2.0
// summary.hpp: what a world reports in the log when it is open (SHOAL_LOG=info).
#pragma once

#include "shoal/settings.hpp"

namespace shoal::detail {

class Fabric;
class Memory;
struct Placement;

/// Logs the world on PE 0, and each PE with its transports and NICs, both at level info; on PE 0
/// also the warnings about variables of the environment that have no effect.
void log_summary(const Placement& placement, const Memory& memory, const Fabric& fabric,
                 const Settings& settings);

}  // namespace shoal::detail
