// SPDX-License-Identifier: Apache-2.0
// report.hpp: the figures of a run: gathered from all PEs, printed as a table, written as JSON, and
// progress meanwhile.
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

/// What one PE did.
struct PeFigures {
  std::int64_t tokens = 0;
  std::int64_t rows_sent =
      0;  ///< token copies, one for each PE that holds an expert of the token, itself included
  std::int64_t rows_received = 0;  ///< likewise
  std::vector<std::int64_t> expert_load;
  PhaseTimes times;  ///< median over the iterations
  std::optional<Check> check;

  double milliseconds(std::string_view phase_prefix) const;  ///< of all phases whose names start so
};

struct Report {
  Options options;
  Shape shape;
  std::int64_t dispatch_row_bytes = 0;
  std::vector<PeFigures> pes;
  std::string experts_run_by;  ///< Layer::experts_run_by

  bool passed() const;
  /// Decimal gigabytes per second that arrived at a PE: rows in dispatch, answers in combine.
  double dispatch_rate(const PeFigures& pe) const;
  double combine_rate(const PeFigures& pe) const;
};

/// Collective: the reports of all PEs from the figures of this one. `mine.rows_received` is filled
/// in.
Report gather_report(const Peers& peers, const Options& options, const Shape& shape,
                     const Layer& layer, const std::vector<PhaseTimes>& iterations,
                     const std::optional<Check>& check);

/// The table for people.
std::string format_table(const Report& report);

/// Everything. Throws Error{system} when the file cannot be written.
void write_json(const Report& report, const std::string& path);

/// Shows on standard error how far a long run is: on a terminal one line that changes, else a line
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
