// SPDX-License-Identifier: Apache-2.0
// shoal_bench.hpp: the benchmarks of shoal-bench. Every PE of the world runs them; PE 0 prints.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "report.hpp"
#include "shoal/world.hpp"

namespace shoal::bench {

void run_ep(World& world, const Shape& shape, const std::string& json_path);
struct RmaOptions {
  std::int64_t iterations = 1000;  ///< of each small operation
  bool heap = false;               ///< local memory lies in the heap, which networks register
  std::vector<std::size_t> sizes;  ///< of puts and gets; empty: all

  bool has(std::size_t bytes) const {
    return sizes.empty() || std::find(sizes.begin(), sizes.end(), bytes) != sizes.end();
  }
};
/// PEs 0 and 1 measure while the others wait; all PEs take part in barrier and all-to-all.
void run_rma(World& world, const RmaOptions& options, const std::string& json_path);
/// Operations with little work. `threads`: the PEs of this process where they are threads, else 0;
/// `open`: what World::open took on this PE.
void run_waits(World& world, const Shape& shape, std::int64_t threads, Times open,
               const std::string& json_path);
/// The first pair of this process, by cause, against steady pairs. `open` as for run_waits.
void run_start(World& world, const Shape& shape, bool preinitialize, Times open,
               const std::string& json_path);
/// Puts from PE 0 to PE 1 through the ring of a proxy.
std::vector<Measurement> measure_proxy(World& world, std::int64_t iterations);

Gather gather_through(World& world);

}  // namespace shoal::bench
