// SPDX-License-Identifier: Apache-2.0
// heap_route.hpp: the way to the heap of one PE.
#pragma once

#include <cstddef>

namespace shoal::transport {

class Transport;

/// `start` is the offset of the heap as `transport` counts.
struct HeapRoute {
  Transport& transport;
  std::size_t start;
};

}  // namespace shoal::transport
