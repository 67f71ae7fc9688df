// SPDX-License-Identifier: Apache-2.0
// files.hpp: when records are written to files.
#pragma once

#include <cstdint>
#include <string>

#include "shoal/heap.hpp"

namespace shoal {
struct Settings;
}

namespace shoal::detail::record {

/// Owner of a failure. The record of a team's failure is written if no failure of the PE has been
/// written before, because a failure of a group is mostly followed by one of a barrier.
enum class FailureOf : std::uint8_t { group, team };
/// Writes the record of PE `me` of this process to `directory` (SHOAL_FLIGHT_DIR), unless that is
/// empty. `world`: PeRecorder::world. A file that cannot be written is a warning.
void write_after_failure(std::uint64_t world, Pe me, const std::string& directory,
                         FailureOf of) noexcept;
/// Writes it at once, and returns the name of the file. Throws Error{unsupported} for a PE without
/// a record.
std::string write_one(std::uint64_t world, Pe me, const std::string& directory);

/// Writes the records of all PEs of this process when SHOAL_FLIGHT_SIGNAL comes. The first call of
/// a process with a signal and a folder installs the handler.
void watch_signal(const Settings& settings);

}  // namespace shoal::detail::record
