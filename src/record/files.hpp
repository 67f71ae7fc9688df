// SPDX-License-Identifier: Apache-2.0
// files.hpp: when records are written to files.
#pragma once

#include <cstdint>

namespace shoal {
struct Settings;
}

namespace shoal::detail {
class WorldState;
}

namespace shoal::detail::record {

/// Of a team: its record is written if no failure of the PE has been written before, because a
/// failure of a group is mostly followed by one of a barrier.
enum class FailureOf : std::uint8_t { group, team };
/// Writes the record of this world's PE to SHOAL_FLIGHT_DIR, if that is set. A file that cannot be
/// written is a warning.
void write_after_failure(WorldState& world, FailureOf of) noexcept;

/// Writes the records of all PEs of this process when SHOAL_FLIGHT_SIGNAL comes. The first call of
/// a process with a signal and a folder installs the handler.
void watch_signal(const Settings& settings);

}  // namespace shoal::detail::record
