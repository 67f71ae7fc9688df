// SPDX-License-Identifier: Apache-2.0
// report.hpp: the figures of a run: gathered from all PEs, printed as a table, written as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moe/exchange.hpp"
#include "moe/layer.hpp"
#include "moe/reference.hpp"

namespace shoal::moe {

/// The figures of one PE, or of all: sums of counts and rates, maxima of loads, times and errors.
struct PeFigures {
  std::int64_t tokens = 0;
  /// Token copies, one for each PE that holds an expert of the token, itself included.
  std::int64_t rows_sent = 0;
  std::int64_t rows_received = 0;  ///< the same for rows that arrive
  double load = 0;                 ///< assignments to its experts, relative to the mean of all PEs
  double dispatch = 0, experts = 0, combine = 0;  ///< milliseconds
  /// Decimal gigabytes per second that arrive: rows in dispatch, expert output in combine.
  double dispatch_rate = 0, combine_rate = 0;
  double error = 0;  ///< Check::worst
  std::vector<std::int64_t> expert_load;
  PhaseTimes times;  ///< median over the iterations
};

struct Report {
  Options options;
  Shape shape;
  std::int64_t dispatch_row_bytes = 0;
  std::vector<PeFigures> pes;
  PeFigures all;
  std::optional<Check> check;  ///< of all PEs

  bool passed() const { return !check || check->passed(); }
};

/// Gathers the figures of all PEs. Collective.
Report gather_report(const Peers& peers, const Options& options, const Shape& shape,
                     const Layer& layer, const std::vector<PhaseTimes>& iterations,
                     const std::optional<Check>& check);

/// The table that is printed.
std::string format_table(const Report& report);

/// Writes all figures as JSON, with path "-" to standard output. Throws Error{system} if the file
/// cannot be written.
void write_json(const Report& report, const std::string& path);

}  // namespace shoal::moe
