// SPDX-License-Identifier: Apache-2.0
// report.hpp: what the benchmarks say: one table for people, one JSON file for programs, the same
// fields for all of them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "workload.hpp"

namespace shoal::bench {

/// One operation as one PE saw it. `bytes`: of the rows that this PE received (dispatch), got back
/// as answers from its peers' rows (combine: one row per row it sent) or copied (memcpy), its own
/// rows included: the logical basis. 0: latency only.
struct Measurement {
  std::string name;
  Times times;       ///< mean of the timed iterations; 0: this PE took no part
  double bytes = 0;  ///< mean per iteration
};

/// Everybody's numbers, PE after PE, from those of this PE. Collective.
using Gather = std::function<std::vector<double>(const std::vector<double>& mine)>;

struct Report {
  std::string program;  ///< "shoal-bench ep"
  std::string basis;    ///< what a byte is here
  std::int32_t pe = 0, pes = 0;
  std::vector<std::pair<std::string, std::string>>
      setup;  ///< shape and machine, in the order to print
};
void describe(Report& report, const Shape& shape);

/// Collective. PE 0 prints the table and, where json_path is not empty, writes the file.
/// Throws Error{system} when the file cannot be written.
void publish(const Report& report, const std::vector<Measurement>& mine, const Gather& gather,
             const std::string& json_path);

}  // namespace shoal::bench
