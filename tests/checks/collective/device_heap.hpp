// SPDX-License-Identifier: Apache-2.0
// device_heap.hpp: collectives of the host over heaps in GPU memory, with the bits of the host's
// arithmetic.
#pragma once

#include "shoal/world.hpp"

namespace shoal::test {

/// Runs broadcast, all_gather, all_to_all, reduce and reduce_scatter on the team of all PEs and on
/// a team of every second PE in reverse order, with sizes around the limits between algorithms, in
/// place where that is allowed. Returns the calls with data that a kernel may run. Collective.
int check_collectives_on_device_heap(World& world);

}  // namespace shoal::test
