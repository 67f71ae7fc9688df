// SPDX-License-Identifier: Apache-2.0
// regions.hpp: the map of a group's block in GPU memory.
#pragma once

#include <cstddef>
#include <vector>

#include "ep/cuda/layout/device_layout.hpp"
#include "ep/cuda/layout/rail_layout.hpp"
#include "shoal/memory_map.hpp"

namespace shoal::ep::detail {

std::vector<observe::MemoryRegion> regions_of(const DeviceLayout& layout, const Shape& shape);
/// Regions of normal mode by kernels between nodes: with the rings, which follow the layout.
std::vector<observe::MemoryRegion> regions_of(const DeviceLayout& layout, const RailLayout& rails,
                                              const Shape& shape);
/// Regions of low-latency mode by kernels between nodes: with blocks for ranks of other nodes,
/// whose layout is the same.
std::vector<observe::MemoryRegion> regions_of(const DeviceLayout& layout, std::size_t outboxes,
                                              const Shape& shape);

}  // namespace shoal::ep::detail
