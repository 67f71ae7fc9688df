// SPDX-License-Identifier: Apache-2.0
// shoal_bench.hpp: the benchmarks of shoal-bench. Each is run by every PE of the world and prints
// on PE 0.
#pragma once

#include <string>

#include "report.hpp"
#include "shoal/world.hpp"

namespace shoal::bench {

void run_ep(World& world, const Shape& shape, const std::string& json_path);
/// PEs 0 and 1 measure, the others wait; barrier and all-to-all take part together.
void run_rma(World& world, std::int64_t iterations, const std::string& json_path);

Gather gather_through(World& world);

}  // namespace shoal::bench
