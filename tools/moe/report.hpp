// SPDX-License-Identifier: Apache-2.0
// report.hpp: the figures of a run: gathered from all PEs, printed as a table, written as JSON; and
// progress of long runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moe/exchange.hpp"
#include "moe/layer.hpp"
#include "moe/options.hpp"
#include "moe/reference.hpp"

namespace shoal::moe {

/// The figures of one PE.
struct PeFigures {
  std::int64_t tokens = 0;
  /// Token copies, one for each PE that holds an expert of the token, itself included.
  std::int64_t rows_sent = 0;
  std::int64_t rows_received = 0;  ///< the same for rows that arrive
  std::vector<std::int64_t> expert_load;
  PhaseTimes times;  ///< median over the iterations
  std::optional<Check> check;

  /// Sum of all phases whose names start with the prefix.
  double milliseconds(std::string_view phase_prefix) const;
};

struct Report {
  Options options;
  Shape shape;
  std::int64_t dispatch_row_bytes = 0;
  std::vector<PeFigures> pes;
  std::string experts_run_by;  ///< Layer::experts_run_by

  bool passed() const;
  /// Decimal gigabytes per second that arrive at a PE: rows in dispatch, expert output in combine.
  double dispatch_rate(const PeFigures& pe) const;
  double combine_rate(const PeFigures& pe) const;
};

/// Gathers the figures of all PEs, with `mine.rows_received`. Collective.
Report gather_report(const Peers& peers, const Options& options, const Shape& shape,
                     const Layer& layer, const std::vector<PhaseTimes>& iterations,
                     const std::optional<Check>& check);

/// The table that is printed.
std::string format_table(const Report& report);

/// Writes all figures as JSON, with path "-" to standard output. Throws Error{system} if the file
/// cannot be written.
void write_json(const Report& report, const std::string& path);

/// Shows the progress of a long run on standard error: one changing line on a terminal, else a line
/// every five seconds.
class Progress {
 public:
  explicit Progress(bool enabled);
  ~Progress() { clear(); }
  void show(std::string_view what, std::int64_t done, std::int64_t total);
  void clear();

 private:
  bool enabled_, terminal_, shown_ = false;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace shoal::moe
