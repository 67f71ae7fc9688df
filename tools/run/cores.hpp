// SPDX-License-Identifier: Apache-2.0
// cores.hpp: shoal-run --bind core: shares the cores of this machine among the PEs.
#pragma once

#include <compare>
#include <vector>

namespace shoal::run {

/// A processor of the operating system: a hardware thread of a core.
struct Processor {
  int package = 0;
  int core = 0;  ///< number within the package
  int number = 0;

  auto operator<=>(const Processor&) const = default;
};

/// The processors on which this process may run, with their cores as Linux reports them; without a
/// report, each processor is a core.
std::vector<Processor> available_processors();

/// Processors of each of `n_pes` PEs. PEs get neighbouring cores, whole with all their processors,
/// as equally many as possible. No two PEs share a core. Throws Error{invalid_argument} if there
/// are fewer cores than PEs, stating both.
std::vector<std::vector<int>> share_cores(std::vector<Processor> processors, int n_pes);

}  // namespace shoal::run
