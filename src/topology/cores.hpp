// SPDX-License-Identifier: Apache-2.0
// cores.hpp: the cores that the PEs of a host may use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace shoal::topology {

/// The logical cores on which the calling thread may run, a bit each. Throws Error{system}.
std::vector<std::byte> allowed_cores();

/// The number of cores in at least one of the sets; at least 1.
std::int32_t count_cores(std::span<const std::vector<std::byte>> sets);

}  // namespace shoal::topology
