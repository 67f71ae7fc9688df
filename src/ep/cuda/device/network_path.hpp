// SPDX-License-Identifier: Apache-2.0
// network_path.hpp: how kernels of a group send to ranks whose heap loads and stores do not reach.
#pragma once

#include <cstdint>

namespace shoal::ep::cuda {

/// One for all that a block of memory of a group is sent, and chosen when the group opens. A launch
/// chooses the kernel by it.
enum class NetworkPath : std::uint32_t {
  proxy,  ///< the progress thread of the world
  nic,    ///< queues of a NIC, which kernels drive (World::gda)
};

}  // namespace shoal::ep::cuda
