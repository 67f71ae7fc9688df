// SPDX-License-Identifier: Apache-2.0
// order.hpp: the order in which a PE creates its queue pairs. Pure functions.
//
// NICs serve queue pairs by number. In the naive order every PE has the lowest numbers for the same
// peers, so all of them send to PE 0 first. In the rotated order each PE starts with its right
// neighbour, and step i of all PEs is a permutation.
#pragma once

#include <cstddef>
#include <vector>

#include "shoal/heap.hpp"

namespace shoal::transport::verbs {

/// A queue pair: the peer, and which of those for that peer.
struct Place {
  Pe pe;
  std::size_t index;

  bool operator==(const Place&) const = default;
};

/// Queue pair i of PE `me` goes to PE (i + 1 + me) mod n, as number i / n of `each`; its own PE is
/// omitted. If not `rotated`, the order is that of the PEs.
inline std::vector<Place> creation_order(Pe n, Pe me, std::size_t each, bool rotated) {
  std::vector<Place> order;
  for (std::size_t index = 0; index < each; ++index)
    for (Pe i = 0; i < n; ++i)
      if (const Pe pe = rotated ? (i + 1 + me) % n : i; pe != me) order.push_back({pe, index});
  return order;
}

}  // namespace shoal::transport::verbs
