// SPDX-License-Identifier: Apache-2.0
// shoal/pe.hpp: the number of a processing element, for host and kernels.
#pragma once

#include <cstdint>

namespace shoal {

/// Index of a processing element, 0-based, in the world or in a team.
using Pe = std::int32_t;

}  // namespace shoal
