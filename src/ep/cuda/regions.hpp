// SPDX-License-Identifier: Apache-2.0
// regions.hpp: the map of a group's block in GPU memory.
#pragma once

#include <vector>

#include "ep/cuda/layout.hpp"
#include "shoal/memory_map.hpp"

namespace shoal::ep::detail {

std::vector<observe::MemoryRegion> regions_of(const DeviceLayout& layout, const Shape& shape);

}  // namespace shoal::ep::detail
