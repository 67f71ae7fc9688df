// SPDX-License-Identifier: Apache-2.0
// launcher.hpp: who started this process, and which bootstraps that offers. Pure functions of the
// launchers' variables.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shoal/settings.hpp"

namespace shoal::bootstrap {

/// What the variables of a process say.
struct Launcher {
  std::string name;  ///< "Open MPI", "Slurm" and so on; empty: no launcher
  std::string why;   ///< the variables that say so, with their values; without a launcher: what was
                     ///< looked for
  std::int64_t pe = -1;
  std::int64_t n_pes = -1;              ///< -1: only the launcher's library knows
  std::vector<std::string> bootstraps;  ///< as in SHOAL_BOOTSTRAP, first choice first
};

/// Launchers may be nested (torchrun started by srun, mpirun in a batch job): the innermost one
/// counts. Throws Error{invalid_argument} naming a variable that is no number or out of range.
Launcher detect_launcher(const std::map<std::string, std::string>& variables);

/// Which bootstraps make_bootstrap tries, and as whom.
struct Choice {
  /// "single", "uid" (SHOAL_UNIQUE_ID), "session" (SHOAL_SESSION_ID), "torch", "plugin:FILE", or
  /// the name of a plug-in of Shoal's. More than one: the next is tried where a plug-in or its
  /// library is not installed.
  std::vector<std::string> bootstraps;
  std::int64_t pe = -1;  ///< -1: the plug-in knows
  std::int64_t n_pes = -1;
  std::string why;
};

/// Throws Error{invalid_argument} when settings contradict each other or what the bootstrap needs
/// is missing.
Choice choose_bootstrap(const Settings& settings);

/// One line for people: "Slurm (PMI_FD, PMI_RANK=0, PMI_SIZE=3): bootstrap pmi, else pmi2". Never
/// throws: a contradiction is told in place of the choice.
std::string describe_launcher(const Settings& settings);

/// host:port where the PEs of a torchrun job meet for their `count`-th world: the host is
/// MASTER_ADDR; the port lies from 10000 to 31999, below those that systems give to outgoing
/// connections, and is derived from MASTER_ADDR, MASTER_PORT (where torch's own store listens), the
/// id of the run, the count of restarts and `count`.
std::string torch_session(const std::map<std::string, std::string>& variables, std::uint64_t count);

}  // namespace shoal::bootstrap
