// SPDX-License-Identifier: Apache-2.0
// placement.hpp: the PEs of a world and the node and host of each.
#pragma once

#include "memory/host/segment.hpp"
#include "topology/identity.hpp"

namespace shoal::detail {

/// Filled in while the world opens, constant afterwards. The vectors are indexed by PE.
struct Placement : topology::HostMap {
  Pe my_pe = 0;
  Pe n_pes = 0;
  memory::Token token{};               ///< names the world; only its PEs know it
  std::int32_t cores_on_host = 1;      ///< that the PEs of this host may use together
  std::int32_t processes_on_host = 1;  ///< whose threads the PEs of this host are

  std::size_t me() const noexcept { return static_cast<std::size_t>(my_pe); }
  bool same_node(Pe pe) const noexcept {
    return node_of[static_cast<std::size_t>(pe)] == node_of[me()];
  }
  bool same_host(Pe pe) const noexcept {
    return host_of[static_cast<std::size_t>(pe)] == host_of[me()];
  }
  /// PEs on the host of this PE, itself included.
  std::int32_t pes_on_host() const noexcept;
};

}  // namespace shoal::detail
