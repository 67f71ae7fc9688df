// SPDX-License-Identifier: Apache-2.0
// live.hpp: what the PEs of running jobs do, and what flight records say.
#pragma once

#include <string>
#include <vector>

#include "shoal/observe.hpp"

namespace shoal::info {

/// A row per PE, below one of captions: its process, what it does, rates since `before`. Rates of
/// rows that crossed a network have columns of their own, if any PE has sent such rows.
std::vector<std::vector<std::string>> activity_rows(const std::vector<observe::PeRecord>& now,
                                                    const std::vector<observe::PeRecord>& before);
/// The rows as text, a line each.
std::string activity_text(const std::vector<observe::PeRecord>& now,
                          const std::vector<observe::PeRecord>& before);

/// A value for each pair of ranks of a group.
struct RankMatrix {
  std::string title;                        ///< "world ..., group 1"
  std::vector<std::vector<double>> values;  ///< [row][column]
};
/// Times in milliseconds for which rows waited for columns. One per group that has counted waits,
/// and one per world for its collectives, since `before`.
std::vector<RankMatrix> wait_matrices(const std::vector<observe::PeRecord>& now,
                                      const std::vector<observe::PeRecord>& before);
/// A matrix of waits as text: a character per pair, darker for longer waits; more ranks than 64 are
/// combined. Names slow ranks and links: a mean of a column above three times that of all pairs, a
/// pair above five times.
std::string heat_map_text(const RankMatrix& matrix);

/// Rates in MB/s at which rows sent to columns over a network. One per group whose dispatches have
/// sent rows over a network since `before`; none of a PE that `before` lacks.
std::vector<RankMatrix> network_matrices(const std::vector<observe::PeRecord>& now,
                                         const std::vector<observe::PeRecord>& before);
/// A matrix of network rates as text, a character per pair, and what each rank sends and receives.
std::string network_text(const RankMatrix& matrix);

/// Number of rows that each expert of a group received.
struct ExpertLoads {
  std::string title;                ///< "world ..., group 1"
  std::vector<std::uint64_t> rows;  ///< by expert of the group
  std::vector<bool> known;          ///< by rank: its record is there
  /// By rank: its first expert, and how many; of ranks that are known.
  struct Held {
    std::size_t first = 0, count = 0;
  };
  std::vector<Held> held;
};
/// One per group whose experts have received rows, since `before`.
std::vector<ExpertLoads> expert_loads(const std::vector<observe::PeRecord>& now,
                                      const std::vector<observe::PeRecord>& before);
/// A line per rank with a character per expert, darker for more rows, and the experts with the most
/// rows. Neighbouring experts are combined where a rank has more than 64.
std::string expert_loads_text(const ExpertLoads& loads);

/// The matrices as heat maps, and the loads as bars; each cell has its value as a tooltip.
std::string live_svg(const std::vector<RankMatrix>& waits, const std::vector<ExpertLoads>& loads,
                     const std::vector<RankMatrix>& network = {});

/// A report as a page of HTML.
struct LivePage {
  std::string title;
  double reload_seconds = 0;  ///< after which a browser reads the file again; 0: it does not
  std::vector<std::vector<std::string>> activity = {};  ///< activity_rows
  std::string who_waits;                                ///< observe::who_waits
  std::string svg;                                      ///< live_svg
};
/// The page, in one file without references to others.
std::string live_html(const LivePage& page);

/// Argument of --locate: an address, such as 0x7f3a5c012340, or an offset of the heap, such as
/// +1052672.
struct Place {
  bool is_offset = false;
  std::uint64_t value = 0;
};
/// Throws Error{invalid_argument} for other texts.
Place place_from(const std::string& text);

}  // namespace shoal::info
