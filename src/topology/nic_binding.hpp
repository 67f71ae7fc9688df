// SPDX-License-Identifier: Apache-2.0
// nic_binding.hpp: which NICs may be used and how the user wants them shared out (requirement D5).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/settings.hpp"
#include "topology/machine.hpp"

namespace shoal::topology {

/// What the user said. All empty: by distance, among the NICs that are fit for it.
struct NicBinding {
  std::string list;          ///< SHOAL_NIC_LIST: "mlx5_0:1,mlx5_2", "^mlx5_4"
  bool round_robin = false;  ///< SHOAL_NIC_ROUND_ROBIN
  std::string mapping;       ///< SHOAL_NIC_MAPPING: "mlx5_0:1:4,mlx5_1:1:4"
};

NicBinding nic_binding(const Settings& settings);

/// The NICs that may be used, as indices of Machine::nics, first choice first.
struct UsableNics {
  std::vector<std::int32_t> nics;
  std::vector<std::string>
      left_out;  ///< for each NIC of the machine why it is not among them; empty when it is
};

/// With a list its ports, in its order; a name without a port stands for all ports of it that are
/// up. Otherwise, or with an exclusion, in the machine's order: the ports that are up and of the
/// best kind there is (RDMA devices, then interfaces of PCI devices, then others), without what
/// carries storage and management: ports of less than half the rate of the fastest, and planes with
/// less than three quarters of the ports of the largest. None is no error where the user named
/// nothing. Throws Error{invalid_argument} naming the setting, with a suggestion, for what is
/// malformed, unknown, down, listed twice, or leaves nothing.
UsableNics usable_nics(const Machine& machine, const NicBinding& binding);

/// The NIC of each of `seats` PEs by SHOAL_NIC_MAPPING. Throws like usable_nics, and when the
/// counts do not add up to `seats`.
std::vector<std::int32_t> mapped_nics(const Machine& machine, const NicBinding& binding,
                                      std::int32_t seats);

}  // namespace shoal::topology
