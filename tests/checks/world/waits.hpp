// SPDX-License-Identifier: Apache-2.0
// waits.hpp: checks of waits that block, counted by the waiter's WaitPoint.
#pragma once

#include "base/wait_point.hpp"
#include "shoal/world.hpp"

namespace shoal::test {

/// The WaitPoint of `pe`, which loads and stores reach.
const WaitPoint& wait_point_of(const World& world, Pe pe);

/// Returns when a thread is about to block there, or blocks.
void await_block(const WaitPoint& point);

/// PE 1 waits, and PE 0 writes once PE 1 blocks, by each operation that writes: each wakes PE 1.
/// Collective, for two PEs whose heaps lie on the host. `of_pe_1`: the WaitPoint of PE 1; nullptr
/// where loads and stores reach it.
void check_writes_wake(World& world, const WaitPoint* of_pe_1 = nullptr);

/// A store through a pointer to the heap of PE 1 wakes no thread. PE 1 sees it all the same.
void check_stores_are_seen(World& world);

}  // namespace shoal::test
