// SPDX-License-Identifier: Apache-2.0
// reader.hpp: records in memory as public structs.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "world/record/layout.hpp"

namespace shoal::detail::record {

/// The PEs of the record of `bytes` bytes at `process`, which another process may be writing.
/// Nothing that it contains is trusted. Empty for another version. `only`: of this world and PE.
std::vector<observe::PeRecord> read(const ProcessBlock& process, std::size_t bytes,
                                    std::optional<std::pair<std::uint64_t, Pe>> only = {});

}  // namespace shoal::detail::record
