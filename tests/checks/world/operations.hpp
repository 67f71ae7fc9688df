// SPDX-License-Identifier: Apache-2.0
// operations.hpp: checks of the operations of a world, for PEs that are threads or processes.
//
// Every PE of the world calls. Each check needs at least two PEs and leaves the heap unchanged.
#pragma once

#include "shoal/world.hpp"

namespace shoal::test {

/// A small heap, and a timeout that only a hung test reaches, not a loaded machine.
Settings world_settings();

void check_identity(World& world);
void check_rma(World& world);
void check_strided(World& world);
void check_atomics(World& world);
void check_signals(World& world);
void check_waits(World& world);
void check_bounds(World& world);
void check_heap(World& world);
void check_exchange(World& world);
void check_teams(World& world);
void check_make_team(World& world);

// order.cpp
void check_fence(World& world);  ///< put_nbi, fence, put of a flag
void check_put_signal_add(World& world);
void check_unsigned_atomics(World& world);
void check_wait_index(World& world);  ///< test_any and the others name the variable
void check_peer_pointer(World& world);
void check_registered_buffers(World& world);  ///< as source of put and target of get

/// All of the above.
void check_everything(World& world);

/// Three allocations of 80 MiB, so that a heap in GPU memory grows: each is written by another PE.
/// They stay allocated.
void check_growth(World& world);

}  // namespace shoal::test
