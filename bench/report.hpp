// SPDX-License-Identifier: Apache-2.0
// report.hpp: the results of a benchmark: one table to read, and one JSON file with the same fields
// for all benchmarks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "workload.hpp"

namespace shoal::bench {

/// One operation as one PE measured it. `bytes` counts logical bytes, the PE's own rows included:
/// rows received (dispatch), rows returned (combine: one per row sent), or bytes copied (memcpy).
/// 0: latency only.
struct Measurement {
  std::string name;
  Times times;       ///< mean of the timed iterations; 0 if this PE took no part
  double bytes = 0;  ///< mean per iteration
};

/// Returns the numbers of all PEs in PE order, given those of this PE. Collective.
using Gather = std::function<std::vector<double>(const std::vector<double>& mine)>;

struct Report {
  std::string program{};  ///< "shoal-bench ep"
  std::string basis{};    ///< what `bytes` counts
  std::int32_t pe = 0, pes = 0;
  /// Shape and machine, in printing order.
  std::vector<std::pair<std::string, std::string>> setup{};
};
/// The basis of shoal-bench ep and of its baseline.
inline constexpr const char* kRowsReceived =
    "logical: rows received (dispatch; combine moves the same rows back), the PE's own included; "
    "memcpy: bytes copied";
/// UTC, such as "2026-11-20".
std::string today();
void describe(Report& report, const Shape& shape);

/// Collective. PE 0 prints the table and writes the file unless json_path is empty. Throws
/// Error{system} if the file cannot be written.
void publish(const Report& report, const std::vector<Measurement>& mine, const Gather& gather,
             const std::string& json_path);

}  // namespace shoal::bench
