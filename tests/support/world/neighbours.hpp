// SPDX-License-Identifier: Apache-2.0
// neighbours.hpp: the PEs of a world as a ring.
#pragma once

#include "shoal/world.hpp"

namespace shoal::test {

inline Pe right(const World& world) {
  return (world.my_pe() + 1) % world.n_pes();
}
inline Pe left(const World& world) {
  return (world.my_pe() + world.n_pes() - 1) % world.n_pes();
}

}  // namespace shoal::test
