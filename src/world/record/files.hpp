// SPDX-License-Identifier: Apache-2.0
// files.hpp: when records are written to files.
#pragma once

namespace shoal {
struct Settings;
}

namespace shoal::detail {
class WorldState;
}

namespace shoal::detail::record {

/// Writes the record of this world's PE to SHOAL_FLIGHT_DIR, if that is set. A file that cannot be
/// written is a warning.
void write_after_failure(WorldState& world) noexcept;

/// Writes the records of all PEs of this process when SHOAL_FLIGHT_SIGNAL comes. The first call of
/// a process with a signal and a folder installs the handler.
void watch_signal(const Settings& settings);

}  // namespace shoal::detail::record
