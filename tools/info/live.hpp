// SPDX-License-Identifier: Apache-2.0
// live.hpp: what the PEs of running jobs do, and what flight records say.
#pragma once

#include <string>
#include <vector>

#include "shoal/observe.hpp"

namespace shoal::info {

/// The records in the files shoal_flight_*.json of a folder, sorted by world and PE. Throws
/// Error{invalid_argument} for a folder without such files and for a file that is no record, naming
/// it.
std::vector<observe::PeRecord> read_flight_records(const std::string& folder);

/// A line per PE: its process, what it does, rates since `before` (empty: since its start).
std::string activity_text(const std::vector<observe::PeRecord>& now,
                          const std::vector<observe::PeRecord>& before);

/// How long each rank of a group waited for each other rank.
struct WaitMatrix {
  std::string title;                              ///< "world ..., group 1"
  std::vector<std::vector<double>> milliseconds;  ///< [waiting rank][awaited rank]
};
/// One per group that has counted waits, since `before`.
std::vector<WaitMatrix> wait_matrices(const std::vector<observe::PeRecord>& now,
                                      const std::vector<observe::PeRecord>& before);
/// The matrix as text: a character per pair, darker for longer waits; more ranks than 64 are
/// combined. Names slow ranks and links: a mean of a column above three times that of all pairs, a
/// pair above five times.
std::string heat_map_text(const WaitMatrix& matrix);
std::string heat_map_svg(const std::vector<WaitMatrix>& matrices);

/// What --locate names: an address, such as 0x7f3a5c012340, or an offset of the heap, such as
/// +1052672.
struct Place {
  bool is_offset = false;
  std::uint64_t value = 0;
};
/// Throws Error{invalid_argument} for other texts.
Place place_from(const std::string& text);

}  // namespace shoal::info
