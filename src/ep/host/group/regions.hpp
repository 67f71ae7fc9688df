// SPDX-License-Identifier: Apache-2.0
// regions.hpp: the map of a group's block on the host.
#pragma once

#include <vector>

#include "ep/host/group/layout.hpp"
#include "shoal/memory_map.hpp"

namespace shoal::ep::host {

std::vector<observe::MemoryRegion> regions_of(const GroupLayout& layout, const Shape& shape);

}  // namespace shoal::ep::host
