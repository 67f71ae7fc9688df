// SPDX-License-Identifier: Apache-2.0
#include "run/cores.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <fstream>

#include "base/check.hpp"

namespace shoal::run {
namespace {

/// A number that Linux reports about a processor, or `otherwise`.
int reported(int processor, const char* name, int otherwise) {
  std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu{}/topology/{}", processor, name));
  int value = 0;
  return file >> value ? value : otherwise;
}

}  // namespace

std::vector<Processor> available_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) fail_errno("cannot read the cores of shoal-run");
  std::vector<Processor> found;
  for (int number = 0; number < CPU_SETSIZE; ++number)
    if (CPU_ISSET(static_cast<std::size_t>(number), &set))
      found.push_back({.package = reported(number, "physical_package_id", 0),
                       .core = reported(number, "core_id", number),
                       .number = number});
  return found;
}

std::vector<std::vector<int>> share_cores(std::vector<Processor> processors, int n_pes) {
  std::ranges::sort(processors);
  std::vector<std::vector<int>> cores;
  for (std::size_t i = 0; i < processors.size(); ++i) {
    const bool same = i > 0 && processors[i].package == processors[i - 1].package &&
                      processors[i].core == processors[i - 1].core;
    if (!same) cores.emplace_back();
    cores.back().push_back(processors[i].number);
  }
  const auto n = static_cast<std::size_t>(n_pes);
  require(n <= cores.size(), Code::invalid_argument,
          "--bind core: {} PEs, but shoal-run may use {} cores; allowed: at most one PE per core. "
          "Start fewer PEs, or use --bind none",
          n_pes, cores.size());
  std::vector<std::vector<int>> shares(n);
  for (std::size_t pe = 0; pe < n; ++pe)
    for (std::size_t i = pe * cores.size() / n; i < (pe + 1) * cores.size() / n; ++i)
      shares[pe].insert(shares[pe].end(), cores[i].begin(), cores[i].end());
  return shares;
}

}  // namespace shoal::run
