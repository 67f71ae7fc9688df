// SPDX-License-Identifier: Apache-2.0
// nic_binding.hpp: which NICs may be used, and how the user assigns them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/settings.hpp"
#include "topology/machine.hpp"

namespace shoal::topology {

/// The user's choice. All empty: by distance, among the NICs that usable_nics returns.
struct NicBinding {
  std::string list;          ///< SHOAL_NIC_LIST: "mlx5_0:1,mlx5_2", "^mlx5_4"
  bool round_robin = false;  ///< SHOAL_NIC_ROUND_ROBIN
  std::string mapping;       ///< SHOAL_NIC_MAPPING: "mlx5_0:1:4,mlx5_1:1:4"
};

NicBinding nic_binding(const Settings& settings);

/// The NICs that may be used, as indices of Machine::nics, first choice first.
struct UsableNics {
  std::vector<std::int32_t> nics;
  /// Indexed by NIC of the machine: why it is excluded; empty if it is usable.
  std::vector<std::string> excluded;
};

/// With a list: its ports, in its order; a name without a port means all ports of the device that
/// are up. Otherwise, or with an exclusion: the ports that are up and of the best available kind
/// (RDMA devices, then interfaces of PCI devices, then others), in the machine's order. Ports that
/// probably carry storage or management are excluded: less than half the rate of the fastest port,
/// or a plane with less than three quarters of the ports of the largest plane. An empty result is
/// an error only if the user named NICs. Throws Error{invalid_argument} naming the setting, with a
/// suggestion, for an entry that is malformed, unknown, down, listed twice, or leaves nothing.
UsableNics usable_nics(const Machine& machine, const NicBinding& binding);

/// The NIC of each of `seats` PEs by SHOAL_NIC_MAPPING. Throws like usable_nics, and if the counts
/// do not add up to `seats`.
std::vector<std::int32_t> mapped_nics(const Machine& machine, const NicBinding& binding,
                                      std::int32_t seats);

}  // namespace shoal::topology
