// SPDX-License-Identifier: Apache-2.0
// shoal_bench.hpp: the benchmarks of shoal-bench. Every PE of the world runs them; PE 0 prints.
#pragma once

#include <string>

#include "report.hpp"
#include "shoal/world.hpp"

namespace shoal::bench {

void run_ep(World& world, const Shape& shape, const std::string& json_path);
/// PEs 0 and 1 measure while the others wait; all PEs take part in barrier and all-to-all.
/// `iterations`: of each small operation.
void run_rma(World& world, std::int64_t iterations, const std::string& json_path);
Gather gather_through(World& world);
/// A report with the program's name and the PEs of the world.
Report report_of(World& world, const std::string& program);

}  // namespace shoal::bench
