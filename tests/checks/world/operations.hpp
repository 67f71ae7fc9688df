// SPDX-License-Identifier: Apache-2.0
// operations.hpp: checks of the world's operations that run on every PE of some world, whatever the
// PEs are.
//
// The tests of threads and of processes call the same checks; each needs at least two PEs and
// leaves the heap as it found it.
#pragma once

#include "shoal/world.hpp"

namespace shoal::test {

/// A small heap, and a timeout that a loaded machine does not reach but a hung test does.
Settings world_settings();

void check_identity(World& world);   // D1
void check_rma(World& world);        // D15
void check_strided(World& world);    // D15
void check_atomics(World& world);    // D15
void check_signals(World& world);    // D15
void check_waits(World& world);      // D15
void check_bounds(World& world);     // D15
void check_heap(World& world);       // D2
void check_exchange(World& world);   // the two operations that everything collective is made of
void check_teams(World& world);      // D3
void check_make_team(World& world);  // D3

// world_order_checks.cpp
void check_fence(World& world);               // D15: put_nbi, fence, put of a flag
void check_put_signal_add(World& world);      // D15
void check_unsigned_atomics(World& world);    // D15
void check_wait_index(World& world);          // D15: test_any and the others name the variable
void check_peer_pointer(World& world);        // D2
void check_registered_buffers(World& world);  // D2: as source of put and target of get

/// All of the above.
void check_everything(World& world);

}  // namespace shoal::test
